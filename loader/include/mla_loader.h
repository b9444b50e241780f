/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_loader: decode attention for multi-head latent attention (MLA) from a bundle of prebuilt
 * GPU machine code.
 *
 *   mla_bundle_open  -> mla_select   -> mla_prepare          -> mla_launch
 *   (host only)         (host only)     (once per device)       (every decode step)
 *
 * Conventions
 *  - Every function returns an mla_status; anything but MLA_SUCCESS leaves a sentence in
 *    mla_last_error() of the calling thread. Outputs are untouched on failure unless said otherwise.
 *  - Structs begin with struct_size: set it with the INIT macro. Fields are only ever appended, and
 *    zero is the default of every field. An older header's smaller struct is read as if the rest were
 *    zero; in a newer header's larger one the part this library does not know must be zero.
 *  - The driver (libcuda.so.1, CUDA 12.0 or later) is loaded with the first call that needs it, once
 *    per process. The environment's MLA_CUDA_DRIVER_PATH names another file to load instead.
 *  - CUDA handles (CUcontext, CUstream) are void*, device addresses uint64_t, sizes uint64_t bytes.
 *  - Status numbers, field offsets and symbol names are stable within a major version.
 *  - Nothing here prints, exits, throws, or calls CUDA from a destructor.
 */
#ifndef MLA_LOADER_H
#define MLA_LOADER_H

#include <stdint.h>

#if defined(_WIN32)
#define MLA_API
#elif defined(__GNUC__)
#define MLA_API __attribute__((visibility("default")))
#else
#define MLA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MLA_VERSION_MAJOR 0
#define MLA_VERSION_MINOR 1
#define MLA_VERSION_PATCH 0
/* major * 1000000 + minor * 1000 + patch */
#define MLA_VERSION 1000
#define MLA_VERSION_STRING "0.1.0"

/* ---- status ---------------------------------------------------------------------------------- */

typedef int32_t mla_status;
#define MLA_SUCCESS 0
#define MLA_ERROR_INVALID_ARGUMENT 1 /* a field is out of range; the message names it */
#define MLA_ERROR_INVALID_BUNDLE 2   /* manifest or cubin refused; file, JSON pointer, reason */
#define MLA_ERROR_IO 3               /* a file cannot be opened or read */
#define MLA_ERROR_NO_KERNEL 4        /* no kernel for this device and problem; reasons given */
#define MLA_ERROR_NO_DRIVER 5        /* libcuda.so.1 missing, too old, or no device */
#define MLA_ERROR_DRIVER 6           /* a driver call failed; call, number and name given */
#define MLA_ERROR_NOT_PREPARED 7     /* prepare first (always so during stream capture) */
#define MLA_ERROR_WRONG_DEVICE 8     /* stream or context belongs to another device */
#define MLA_ERROR_DEVICE_LIMIT 9     /* the device cannot run this kernel; the limit is named */
#define MLA_ERROR_WORKSPACE 10       /* workspace null, misaligned or too small */
#define MLA_ERROR_OUT_OF_MEMORY 11   /* host memory */
#define MLA_ERROR_INTERNAL 12        /* a fault of this library */

/* Name of a status ("MLA_ERROR_IO"); "MLA_ERROR_UNKNOWN" for others. Thread-safe, static storage. */
MLA_API const char* mla_status_name(mla_status status);

/* Sentence about the calling thread's last failure, "" if none. Thread-local; valid until the
 * thread's next failing call into this library. */
MLA_API const char* mla_last_error(void);

/* Copies mla_last_error() with its final NUL into buffer (at most `size` bytes, always terminated
 * when size > 0). *needed (may be null) receives the full size in bytes including the NUL. */
MLA_API mla_status mla_last_error_copy(char* buffer, uint64_t size, uint64_t* needed);

/* Version of the loaded library as MLA_VERSION and as text ("0.1.0"). Thread-safe. */
MLA_API uint32_t mla_version(void);
MLA_API const char* mla_version_string(void);

/* ---- data types ------------------------------------------------------------------------------ */

typedef int32_t mla_dtype;
#define MLA_DTYPE_E4M3 1
#define MLA_DTYPE_BF16 2

typedef int32_t mla_family;
#define MLA_FAMILY_ANY 0
#define MLA_FAMILY_CLUSTER 1
#define MLA_FAMILY_HOPPER 2

/* Form of the fp8 matrix instruction. The two give the same result; BLOCK_SCALED runs at full rate
 * on GeForce boards. ANY lets the bundle's own ranking decide. */
typedef int32_t mla_mma;
#define MLA_MMA_ANY 0
#define MLA_MMA_PLAIN 1
#define MLA_MMA_BLOCK_SCALED 2

/* Feature bits of a kernel. */
#define MLA_FEATURE_LSE 1u
#define MLA_FEATURE_PDL 2u
#define MLA_FEATURE_SEPARATE_VALUES 4u

/* ---- bundle ---------------------------------------------------------------------------------- */

typedef struct mla_bundle mla_bundle;

#define MLA_OPEN_SKIP_HASH 1u /* do not read and hash the cubins at open (checked at prepare) */

typedef struct mla_open_options {
  uint32_t struct_size;
  uint32_t flags;              /* MLA_OPEN_* */
  const char* manifest_sha256; /* 64 hex digits the manifest must have; null: any */
} mla_open_options;
#define MLA_OPEN_OPTIONS_INIT \
  { (uint32_t)sizeof(mla_open_options), 0, 0 }

/* Opens the bundle in folder `path`. Null: the environment's MLA_BUNDLE_PATH, else the folder
 * "mla_bundle" beside this library. Host only: needs neither driver nor GPU. `options` may be null.
 * Every file is checked: size, sha256, structure; one that is damaged, missing or reached by a link
 * that leaves the folder sinks the bundle. A kernel of a kind that this library does not know does
 * not: it is never selected, and mla_select_explain says why.
 * Errors: INVALID_ARGUMENT, IO, INVALID_BUNDLE, OUT_OF_MEMORY. Thread-safe. */
MLA_API mla_status mla_bundle_open(const char* path, const mla_open_options* options, mla_bundle** bundle);

/* Closes a bundle, unloads its kernels from every device they were prepared on and frees all
 * handles that came from it. No launch may be in flight and no other thread may use it. Null is
 * allowed. Errors: DRIVER (a module cannot be unloaded; the bundle is closed all the same). */
MLA_API mla_status mla_bundle_close(mla_bundle* bundle);

typedef struct mla_bundle_info {
  uint32_t struct_size;
  uint32_t kernel_count;
  uint32_t params_version; /* version of the kernels' parameter struct */
  uint32_t format_major;
  uint32_t format_minor;
  uint32_t reserved;
  const char* name; /* strings live as long as the bundle */
  const char* version;
  const char* toolkit;         /* for instance "13.0.88" */
  const char* source_hash;     /* sha256 of the sources the kernels were built from, hex */
  const char* manifest_sha256; /* digest of manifest.json, hex: pin it if you ship it */
  const char* path;
} mla_bundle_info;
#define MLA_BUNDLE_INFO_INIT \
  { (uint32_t)sizeof(mla_bundle_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_bundle_get_info(const mla_bundle* bundle, mla_bundle_info* info);

typedef struct mla_kernel_info {
  uint32_t struct_size;
  uint32_t sm;      /* 90, 120 */
  const char* id;   /* unique in the bundle */
  const char* file; /* relative to the bundle */
  const char* symbol;
  const char* target;     /* "sm_90a", "sm_120f" */
  const char* min_driver; /* for instance "580.65.06" */
  mla_family family;
  mla_mma mma;
  mla_dtype q_dtype;
  mla_dtype kv_dtype;
  mla_dtype out_dtype;
  int32_t rows; /* row tile: most heads */
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t page_size_min;
  int32_t page_size_max;
  uint32_t features; /* MLA_FEATURE_* */
  int32_t threads;
  int32_t cluster_size;
  int32_t registers;
  int32_t dynamic_smem; /* bytes */
  int32_t spill_bytes;  /* -1: not known */
  int32_t priority;     /* higher wins between otherwise equal kernels */
  int32_t reserved;
} mla_kernel_info;
#define MLA_KERNEL_INFO_INIT                                                                                \
  {                                                                                                         \
    (uint32_t)sizeof(mla_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0                                                                                                   \
  }

/* Describes kernel `index` (0 ... kernel_count - 1). Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_bundle_get_kernel(const mla_bundle* bundle, uint32_t index, mla_kernel_info* info);

/* ---- selection ------------------------------------------------------------------------------- */

typedef struct mla_problem {
  uint32_t struct_size;
  uint32_t features; /* MLA_FEATURE_* bits that the kernel must have */
  int32_t cc_major;  /* compute capability; 0 in mla_prepare: that of the device */
  int32_t cc_minor;
  mla_dtype q_dtype;
  mla_dtype kv_dtype;
  mla_dtype out_dtype;
  int32_t head_dim_k; /* 576 */
  int32_t head_dim_v; /* 512 */
  int32_t heads;      /* query heads on this device, 1 ... 128 */
  int32_t q_len;      /* query tokens per request */
  int32_t page_size;  /* tokens per page */
  mla_family family;  /* MLA_FAMILY_ANY or the family wanted */
  mla_mma mma;        /* MLA_MMA_ANY or the form wanted */
} mla_problem;
#define MLA_PROBLEM_INIT                                                                                   \
  {                                                                                                        \
    (uint32_t)sizeof(mla_problem), 0, 0, 0, MLA_DTYPE_E4M3, MLA_DTYPE_E4M3, MLA_DTYPE_BF16, 576, 512, 128, \
        1, 64, MLA_FAMILY_ANY, MLA_MMA_ANY                                                                 \
  }

/* Finds the best kernel for a compute capability and a problem. Rule: a kernel for exactly this
 * chip ('a' suffix) before one for exactly this chip without suffix, before a family kernel ('f'),
 * before one without suffix for an earlier chip of the same major; among the latter two the closest
 * chip; then the smaller row tile; then the higher priority; then the id. Host only, no allocation
 * on success. Errors: INVALID_ARGUMENT; NO_KERNEL: mla_last_error() lists every candidate with the
 * reason why it was passed over. Thread-safe. */
MLA_API mla_status mla_select(const mla_bundle* bundle, const mla_problem* problem, uint32_t* kernel_index);

/* Writes, a line per kernel of the bundle, its rank or the reason why it is passed over. Same
 * copy-out rule as mla_last_error_copy. Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_select_explain(const mla_bundle* bundle, const mla_problem* problem, char* buffer,
                                      uint64_t size, uint64_t* needed);

/* ---- preparation ----------------------------------------------------------------------------- */

typedef struct mla_kernel mla_kernel; /* a kernel prepared in one context; owned by the bundle */

typedef struct mla_prepare_options {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  void* context;  /* CUcontext to use; null: the current one */
} mla_prepare_options;
#define MLA_PREPARE_OPTIONS_INIT \
  { (uint32_t)sizeof(mla_prepare_options), 0, 0 }

/* Selects a kernel for the device of the context and loads it there: checks the file's size, hash and
 * structure, loads the module, sets the per-device attributes, compares registers, shared memory,
 * cluster and parameters with the manifest, brings the code onto the device, and asks the driver how
 * many clusters fit. If the driver refuses the image (errors 200, 209, 218, 222) or the device lacks
 * what the kernel needs, the next candidate is tried and the reasons are reported together if none
 * is left. The module is loaded once, whatever the number of devices, contexts and threads; later
 * calls for the same context return the same handle and load nothing. It lives until the bundle is
 * closed. After a failure nothing stays loaded, and the call can be repeated.
 * While the context captures a stream, a kernel that is not prepared yet gives NOT_PREPARED, and the
 * capture goes on unharmed. (Captures on non-blocking streams of other threads cannot be seen; the
 * load is then made in the relaxed capture mode, which does not disturb them.)
 * Errors: INVALID_ARGUMENT, IO, INVALID_BUNDLE, NO_KERNEL, NO_DRIVER, DRIVER, NOT_PREPARED,
 * WRONG_DEVICE (the problem names another compute capability than the device's), DEVICE_LIMIT,
 * OUT_OF_MEMORY. Thread-safe. */
MLA_API mla_status mla_prepare(mla_bundle* bundle, const mla_problem* problem,
                               const mla_prepare_options* options, mla_kernel** kernel);

/* The same for kernel `index` of the bundle, without selection. */
MLA_API mla_status mla_prepare_index(mla_bundle* bundle, uint32_t index, const mla_prepare_options* options,
                                     mla_kernel** kernel);

typedef struct mla_prepared_info {
  uint32_t struct_size;
  uint32_t kernel_index;
  int32_t device; /* driver ordinal */
  int32_t cc_major;
  int32_t cc_minor;
  int32_t sm_count;
  int32_t max_workers; /* CTAs or clusters that fit the device at once */
  int32_t reserved;
  uint64_t workspace_bytes;     /* enough for every launch of this handle; each needs as much */
  uint64_t workspace_alignment; /* bytes */
} mla_prepared_info;
#define MLA_PREPARED_INFO_INIT \
  { (uint32_t)sizeof(mla_prepared_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_kernel_get_info(const mla_kernel* kernel, mla_prepared_info* info);

/* Zeroes the part of a workspace that must be zero before the first launch (asynchronous on
 * `stream`; legal during capture). Needed once per workspace; every launch leaves it ready for the
 * next. A workspace serves one launch at a time: use one per stream. Errors: INVALID_ARGUMENT,
 * WORKSPACE, WRONG_DEVICE, DRIVER. Thread-safe. */
MLA_API mla_status mla_workspace_init(const mla_kernel* kernel, uint64_t workspace, uint64_t workspace_bytes,
                                      void* stream);

/* ---- launch ---------------------------------------------------------------------------------- */

#define MLA_LAUNCH_PDL 1u /* programmatic stream serialisation: may start before its predecessor ends */

/*
 * score(t, i) = softmax_scale * q_scale * kv_scale * <q_t, k_i>
 * out(t)      = kv_scale * sum_i softmax(score(t, .))_i * v_i
 * lse(t)      = log sum_i exp(score(t, i))                        (natural logarithm)
 * Query token t of a request sees cache positions i < seq_len - (q_len - 1) + t. One that sees none
 * gives out = 0, lse = -inf. There is no hidden 1/sqrt(576).
 */
typedef struct mla_launch_args {
  uint32_t struct_size;
  uint32_t flags;            /* MLA_LAUNCH_* */
  uint64_t q;                /* [batch, q_len, heads, head_dim_k], dense, 16-byte aligned */
  uint64_t kv;               /* [pages, page_size, head_dim_k], 16-byte aligned */
  uint64_t v;                /* values of their own [pages, page_size, head_dim_v]; 0: in kv */
  uint64_t page_table;       /* int32 [batch, max_pages_per_seq] */
  uint64_t seq_lens;         /* int32 [batch]: tokens in the cache, the newest q_len included */
  uint64_t out;              /* bf16 [batch, q_len, heads, head_dim_v], dense, 16-byte aligned */
  uint64_t lse;              /* float [batch, q_len, heads]; 0: not wanted */
  uint64_t q_scale_ptr;      /* device float; 0: use q_scale */
  uint64_t kv_scale_ptr;     /* device float; 0: use kv_scale */
  uint64_t bad_page_counter; /* device uint32, incremented when a visible page id is outside the
                                pool (those tokens are masked); 0: not wanted */
  uint64_t workspace;        /* of this kernel and device, initialised once */
  uint64_t workspace_bytes;
  int64_t kv_page_stride;  /* bytes, multiple of 16; 0: dense. A page lies together, or pages interleave */
  int64_t kv_token_stride; /* bytes, multiple of 16; 0: dense */
  int64_t v_page_stride;   /* as above, for v; ignored when v is 0 */
  int64_t v_token_stride;
  int64_t page_table_stride; /* elements between rows; 0: max_pages_per_seq */
  int64_t pages;             /* pages in the pool, 1 ... 2^31 - 1: bounds every read */
  int32_t batch;             /* requests, >= 1 */
  int32_t q_len;             /* query tokens per request, 1 ... 64 */
  int32_t heads;             /* 1 ... the kernel's rows */
  int32_t page_size;         /* tokens, a power of two within the kernel's range */
  int32_t max_pages_per_seq; /* >= 1; times page_size at most 2^31 - 1: bounds seq_lens */
  float softmax_scale;       /* finite and not 0: there is no default */
  float q_scale;             /* finite; INIT gives 1 */
  float kv_scale;            /* finite; INIT gives 1 */
  int32_t max_splits;        /* most splits of one query token's sequence; 1: none; 0: no cap */
  int32_t max_sms;           /* most SMs used; 0: all */
} mla_launch_args;
#define MLA_LAUNCH_ARGS_INIT                                                                                \
  {                                                                                                         \
    (uint32_t)sizeof(mla_launch_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0.0f, 1.0f, 1.0f, 0, 0                                                                           \
  }

/* Launches one decode step on `stream` (CUstream; null: the legacy default stream of the current
 * context), which must belong to the context that the kernel was prepared in. That context need not
 * be current unless the stream is null.
 * Validates every field on the host, encodes the tensor maps and makes one kernel launch. No
 * allocation, no lock held over a driver call, no synchronisation; legal during stream capture, and
 * a captured launch stays right when the contents of seq_lens and page_table change. Errors:
 * INVALID_ARGUMENT (field, value given, values allowed), WORKSPACE, WRONG_DEVICE, DRIVER.
 * Thread-safe; launches that share a workspace must be ordered by the caller. */
MLA_API mla_status mla_launch(const mla_kernel* kernel, const mla_launch_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MLA_LOADER_H */

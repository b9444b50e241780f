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
 *    mla_last_error() of the calling thread and, where the options or arguments have the fields
 *    `error` and `error_size`, in that buffer too: for programs that move between threads. It is
 *    terminated with NUL, cut to size at a character, and untouched on success and when the struct
 *    itself is refused. Outputs are untouched on failure unless said otherwise.
 *  - Structs begin with struct_size: set it with the INIT macro, which sets nothing else. Zero is the
 *    default of every field: what each zero means is written beside it. Fields are only ever
 *    appended. An older header's smaller struct is read as if the rest were zero; in a newer header's
 *    larger one the part this library does not know must be zero.
 *  - The driver (libcuda.so.1, CUDA 12.0 or later) is loaded with the first call that needs it, once
 *    per process. The environment's MLA_CUDA_DRIVER_PATH names another file to load instead. A child
 *    made by fork() after that cannot use it, which every call says.
 *  - CUDA handles (CUcontext, CUstream) are void*, device addresses uint64_t, sizes uint64_t bytes.
 *  - Text is UTF-8 without control characters other than newline; numbers in it do not depend on the
 *    locale.
 *  - Numbers of words (dtypes, kinds, ...) are never changed or used again. What else is stable from
 *    one release to the next: docs/versioning.md.
 *  - Nothing here prints, exits, throws, or calls CUDA from a destructor. The library stays in the
 *    process after dlclose.
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

/* ---- words ----------------------------------------------------------------------------------- */

typedef int32_t mla_dtype;
#define MLA_DTYPE_E4M3 1
#define MLA_DTYPE_BF16 2
#define MLA_DTYPE_F32 3

/* What a kernel computes. */
typedef int32_t mla_kind;
#define MLA_KIND_DECODE 1 /* attention of a few query tokens over a paged latent cache: mla_launch */
#define MLA_KIND_MERGE 2  /* partial (out, lse) pairs into one: mla_merge_launch */

typedef int32_t mla_family;
#define MLA_FAMILY_ANY 0
#define MLA_FAMILY_CLUSTER 1
#define MLA_FAMILY_HOPPER 2
#define MLA_FAMILY_MERGE 3

/* Form of the matrix instruction. PLAIN and BLOCK_SCALED give the same result; BLOCK_SCALED runs at
 * full rate on GeForce boards. ANY lets cost and the bundle's own ranking decide. */
typedef int32_t mla_mma;
#define MLA_MMA_ANY 0
#define MLA_MMA_PLAIN 1
#define MLA_MMA_BLOCK_SCALED 2
#define MLA_MMA_WGMMA 3

/* What is rounded on the way. */
typedef int32_t mla_arithmetic;
#define MLA_ARITHMETIC_ANY 0
#define MLA_ARITHMETIC_QUANTISED 1 /* q, cache and the softmax weights are e4m3 */
#define MLA_ARITHMETIC_EXACT 2     /* cache values are used exactly */

/* Layout of a cached token. */
typedef int32_t mla_cache_layout;
#define MLA_CACHE_LAYOUT_DENSE 1 /* head_dim_k elements of kv_dtype, one scale for the whole pool */

/* What a kernel can do beyond the least; bits. Asking at launch for what a kernel lacks is an error
 * that names the argument. */
#define MLA_FEATURE_LSE 0x1u               /* writes lse when asked */
#define MLA_FEATURE_PDL 0x2u               /* can be launched with MLA_LAUNCH_PDL */
#define MLA_FEATURE_SEPARATE_VALUES 0x4u   /* values may come from a pool of their own */
#define MLA_FEATURE_STRIDES 0x8u           /* free strides of q, out and lse */
#define MLA_FEATURE_RAGGED_Q 0x10u         /* query counts of each request, on the device */
#define MLA_FEATURE_NON_CAUSAL 0x20u       /* MLA_LAUNCH_NON_CAUSAL */
#define MLA_FEATURE_CONTEXT_PARALLEL 0x40u /* the pool holds one rank's share of every sequence */
#define MLA_FEATURE_FIXED_SPLIT 0x80u      /* splits of a fixed number of tokens */
#define MLA_FEATURE_WINDOW 0x100u          /* sliding window */
#define MLA_FEATURE_SPARSE 0x200u          /* a list of tokens for every query token */

/* ---- bundle ---------------------------------------------------------------------------------- */

typedef struct mla_bundle mla_bundle;

#define MLA_OPEN_SKIP_HASH 1u /* do not read and hash the cubins at open (checked at prepare) */

typedef struct mla_open_options {
  uint32_t struct_size;
  uint32_t flags;              /* MLA_OPEN_* */
  const char* manifest_sha256; /* 64 hex digits the manifest must have; null: any */
  char* error;                 /* receives the sentence of a failure; null: not wanted */
  uint64_t error_size;         /* bytes */
} mla_open_options;
#define MLA_OPEN_OPTIONS_INIT \
  { (uint32_t)sizeof(mla_open_options), 0, 0, 0, 0 }

/* Opens the bundle in folder `path`. Null: the environment's MLA_BUNDLE_PATH, else the folder
 * "mla_bundle" beside this library. Host only: needs neither driver nor GPU. `options` may be null.
 * Every file is checked: size, sha256, structure; one that is damaged, missing or reached by a link
 * that leaves the folder sinks the bundle. A kernel that this library does not know how to launch (a
 * kind, feature that it requires, word or parameter struct of a later release) does not: it is never
 * selected, and mla_kernel_info.unusable and mla_select_explain say why.
 * Errors: INVALID_ARGUMENT, IO, INVALID_BUNDLE, OUT_OF_MEMORY. Thread-safe. */
MLA_API mla_status mla_bundle_open(const char* path, const mla_open_options* options, mla_bundle** bundle);

/* Closes a bundle, unloads its kernels from every device they were prepared on and frees all
 * handles that came from it. No launch may be in flight and no other thread may use it. Null is
 * allowed. A bundle that was closed is refused, as long as no other was opened at its address; any
 * other use of a closed bundle or of its kernels is undefined. Errors: INVALID_ARGUMENT (not an open
 * bundle); DRIVER (a module cannot be unloaded; the bundle is closed all the same). */
MLA_API mla_status mla_bundle_close(mla_bundle* bundle);

typedef struct mla_bundle_info {
  uint32_t struct_size;
  uint32_t kernel_count;
  uint32_t format_major;
  uint32_t format_minor;
  uint64_t workspace_zeroed_bytes; /* what mla_workspace_init writes, at the start of a workspace */
  const char* name;                /* strings live as long as the bundle */
  const char* version;
  const char* toolkit;         /* for instance "13.0.88" */
  const char* source_hash;     /* sha256 of the sources the kernels were built from, hex */
  const char* manifest_sha256; /* digest of manifest.json, hex: pin it if you ship it */
  const char* path;
} mla_bundle_info;
#define MLA_BUNDLE_INFO_INIT \
  { (uint32_t)sizeof(mla_bundle_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_bundle_get_info(const mla_bundle* bundle, mla_bundle_info* info);

/* Fields that a kernel of its kind does not have are 0. */
typedef struct mla_kernel_info {
  uint32_t struct_size;
  uint32_t sm;      /* 90, 120 */
  const char* id;   /* unique in the bundle */
  const char* file; /* relative to the bundle */
  const char* symbol;
  const char* target;        /* "sm_90a", "sm_120f" */
  const char* min_driver;    /* for instance "580.65.06" */
  const char* unusable;      /* why this library cannot launch it; "" if it can */
  const char* params_struct; /* parameter struct that it takes, "decode" or "merge" */
  uint32_t params_version;   /* and its version */
  uint32_t features;         /* MLA_FEATURE_* */
  mla_kind kind;
  mla_family family;
  mla_mma mma;
  mla_arithmetic arithmetic;
  mla_cache_layout cache_layout;
  mla_dtype q_dtype;
  mla_dtype kv_dtype;
  mla_dtype partial_dtype; /* of a merge kernel's input */
  mla_dtype out_dtype;
  int32_t rows; /* row tile: (query token, head) pairs computed together */
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t tile_tokens;        /* tokens of a KV tile */
  int32_t page_size_multiple; /* page sizes are multiples of this, tokens */
  int32_t page_size_max;
  int32_t threads; /* of a CTA */
  int32_t cluster_size;
  int32_t registers;    /* of a thread */
  int32_t dynamic_smem; /* of a CTA, bytes */
  int32_t static_smem;  /* of a CTA, bytes */
  int32_t spill_bytes;  /* of a thread; -1: not known */
  int32_t stack_bytes;  /* of a thread */
  int32_t priority;     /* higher wins between otherwise equal kernels */
  int32_t tile_cost;   /* modelled time of a tile of a row tile times the SMs it occupies, ns per 64 tokens */
  int32_t max_workers; /* most CTAs or clusters of a launch */
  int32_t reserved;
} mla_kernel_info;
#define MLA_KERNEL_INFO_INIT                                                                                \
  {                                                                                                         \
    (uint32_t)sizeof(mla_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                               \
  }

/* Describes kernel `index` (0 ... kernel_count - 1). Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_bundle_get_kernel(const mla_bundle* bundle, uint32_t index, mla_kernel_info* info);

/* ---- selection ------------------------------------------------------------------------------- */

typedef struct mla_problem {
  uint32_t struct_size;
  uint32_t features; /* MLA_FEATURE_* bits that the kernel must have */
  mla_kind kind;     /* 0: MLA_KIND_DECODE */
  int32_t cc_major;  /* compute capability; 0 in mla_prepare: that of the device */
  int32_t cc_minor;
  mla_dtype q_dtype;             /* decode; 0: e4m3 */
  mla_dtype kv_dtype;            /* decode; 0: e4m3 */
  mla_dtype partial_dtype;       /* merge; 0: bf16, which decode kernels write */
  mla_dtype out_dtype;           /* 0: bf16 */
  int32_t head_dim_k;            /* decode; 0: 576 */
  int32_t head_dim_v;            /* 0: 512 */
  int32_t heads;                 /* decode: query heads on this device, 1 ... 128; there is no default */
  int32_t q_len;                 /* decode: query tokens per request, 1 ... 64; 0: 1 */
  int32_t page_size;             /* decode: tokens per page; 0: 64 */
  mla_family family;             /* 0: any */
  mla_mma mma;                   /* 0: any */
  mla_arithmetic arithmetic;     /* 0: any */
  mla_cache_layout cache_layout; /* 0: MLA_CACHE_LAYOUT_DENSE */
  int32_t batch;                 /* requests, a hint; 0: not known */
  int32_t device_class;          /* 0; room for boards that differ within a compute capability */
  int64_t seq_len;               /* tokens of a usual request, a hint; 0: not known */
  char* error;                   /* receives the sentence of a failure; null: not wanted.
                                    In mla_prepare that of its options comes first */
  uint64_t error_size;           /* bytes */
  int32_t sm_count; /* multiprocessors that a launch may use, a hint; 0: not known, in mla_prepare those
                       of the device */
  int32_t reserved; /* 0 */
} mla_problem;
#define MLA_PROBLEM_INIT \
  { (uint32_t)sizeof(mla_problem), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Finds the best kernel for a compute capability and a problem. Rule: a kernel for exactly this
 * chip ('a' suffix) before one for exactly this chip without suffix, before a family kernel ('f'),
 * before one without suffix for an earlier chip of the same major; among the latter two the closest
 * chip; then the least modelled cost; then the higher priority; then the id. The cost is row tiles
 * times mla_kernel_info.tile_cost, with ceil(q_len * heads / rows) row tiles; where batch, seq_len and
 * sm_count are all given, it is the modelled time of such a launch in nanoseconds: the tiles of the worker
 * that has most of them, and the merge where requests are split. Few requests then go to kernels of fewer
 * rows, which fill the device. Host only, no allocation on success. Errors: INVALID_ARGUMENT; NO_KERNEL: the sentence
 * lists every candidate with the reason why it was passed over. Thread-safe. */
MLA_API mla_status mla_select(const mla_bundle* bundle, const mla_problem* problem, uint32_t* kernel_index);

/* Writes, a line per kernel of the bundle, its rank and modelled cost or the reason why it is passed
 * over. Same copy-out rule as mla_last_error_copy. Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_select_explain(const mla_bundle* bundle, const mla_problem* problem, char* buffer,
                                      uint64_t size, uint64_t* needed);

/* ---- preparation ----------------------------------------------------------------------------- */

typedef struct mla_kernel mla_kernel; /* a kernel prepared in one context; owned by the bundle */

typedef struct mla_prepare_options {
  uint32_t struct_size;
  uint32_t flags;      /* 0 */
  void* context;       /* CUcontext to use; null: the current one */
  char* error;         /* receives the sentence of a failure; null: not wanted */
  uint64_t error_size; /* bytes */
} mla_prepare_options;
#define MLA_PREPARE_OPTIONS_INIT \
  { (uint32_t)sizeof(mla_prepare_options), 0, 0, 0, 0 }

/* Selects a kernel for the device of the context and loads it there: checks the file's size, hash and
 * structure, loads the module, sets the per-device attributes, compares registers, shared memory,
 * cluster and parameters with the manifest, brings the code onto the device, and asks the driver how
 * many clusters fit. If the driver refuses the image (errors 200, 209, 218, 222) or the device lacks
 * what the kernel needs, the next candidate is tried and the reasons are reported together if none
 * is left. The module is loaded once, whatever the number of devices, contexts and threads; later
 * calls for the same context return the same handle and load nothing. It lives until the bundle is
 * closed. After a failure nothing stays loaded, and the call can be repeated.
 * While the context captures a stream that synchronises with the legacy default stream, a kernel that
 * is not prepared yet gives NOT_PREPARED, and the capture goes on unharmed. A capture on a stream made
 * with CU_STREAM_NON_BLOCKING, this thread's own included, cannot be seen from here: the load is then
 * made in the relaxed capture mode, which does not disturb it, and succeeds if the driver can load
 * during a capture.
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
  int32_t max_workers; /* CTAs or clusters of a launch: those that fit the device at once, at most
                          mla_kernel_info.max_workers */
  int32_t reserved;
  uint64_t workspace_bytes;     /* enough for every launch of this handle; 0: it uses none */
  uint64_t workspace_alignment; /* bytes */
} mla_prepared_info;
#define MLA_PREPARED_INFO_INIT \
  { (uint32_t)sizeof(mla_prepared_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Errors: INVALID_ARGUMENT. Thread-safe. */
MLA_API mla_status mla_kernel_get_info(const mla_kernel* kernel, mla_prepared_info* info);

/* ---- workspace -------------------------------------------------------------------------------- */

/*
 * One workspace per stream: it is device memory, 256-byte aligned, initialised once, and serves every
 * kernel of the bundle on its device, in any order on that stream. Every launch leaves it ready for
 * the next. A workspace serves one launch at a time. Its size depends on the device and the kernels,
 * not on the batch or the lengths.
 */
typedef struct mla_workspace_query {
  uint32_t struct_size;
  uint32_t flags;                     /* 0 */
  const mla_problem* const* problems; /* those that the workspace must serve; null: every kernel of
                                         the bundle that runs on the device. Their cc_major may be 0 */
  uint32_t problem_count;
  int32_t split_tokens; /* 0; room for fixed splits, whose partial results grow with the tokens of a
                           launch: no kernel has them yet */
  void* context;        /* CUcontext whose device counts; null: the current one */
  char* error;          /* receives the sentence of a failure; null: not wanted */
  uint64_t error_size;  /* bytes */
} mla_workspace_query;
#define MLA_WORKSPACE_QUERY_INIT \
  { (uint32_t)sizeof(mla_workspace_query), 0, 0, 0, 0, 0, 0, 0 }

/* Bytes of a workspace that is large enough for every kernel that serves one of the problems on the
 * device, or for the whole bundle. An upper bound from the attributes of the device: nothing is
 * loaded, and mla_prepared_info.workspace_bytes of a kernel is never more. `query` may be null.
 * Errors: INVALID_ARGUMENT, NO_KERNEL, NO_DRIVER, DRIVER, WRONG_DEVICE (a problem names another
 * compute capability). Thread-safe. */
MLA_API mla_status mla_workspace_bytes(const mla_bundle* bundle, const mla_workspace_query* query,
                                       uint64_t* bytes);

/* Makes a workspace ready for every kernel of the bundle: zeroes its counters and writes the mark
 * that kernels look for (asynchronous on `stream`, three memory sets; legal during capture). Needed
 * once per workspace. A launch with a workspace that was never initialised gives NaN for out and lse.
 * `workspace_bytes` is its size. Null `stream`: the legacy default stream of the current context.
 * Errors: INVALID_ARGUMENT, WORKSPACE, NO_DRIVER, DRIVER, WRONG_DEVICE (null `stream`, and no context is
 * current). Thread-safe. */
MLA_API mla_status mla_workspace_init(const mla_bundle* bundle, uint64_t workspace, uint64_t workspace_bytes,
                                      void* stream);

/* ---- launch ---------------------------------------------------------------------------------- */

#define MLA_LAUNCH_PDL 0x1u /* programmatic stream serialisation: may start before its predecessor ends */
#define MLA_LAUNCH_NON_CAUSAL 0x2u /* every query token sees the whole sequence */

/*
 * score(t, i) = softmax_scale * q_scale * kv_scale * <q_t, k_i>
 * out(t)      = kv_scale * sum_i softmax(score(t, .))_i * v_i
 * lse(t)      = log sum_i exp(score(t, i))                        (natural logarithm)
 * Query token t of a request sees cache positions i < seq_len - (q_len - 1) + t. One that sees none
 * gives out = 0, lse = -inf. A NaN in what it sees gives NaN in both. There is no hidden factor:
 * softmax_scale is 1/sqrt(192) for DeepSeek V2, V3 and R1 and for Kimi K2, whose heads have 128 + 64
 * elements before absorption (times mscale squared with YaRN), and 1/sqrt(576) only for a model that
 * scales by the dimension after absorption.
 *
 * Independent of the rest of the batch, bit by bit, is the result of a request with max_splits 1, or
 * with split_tokens.
 */
typedef struct mla_launch_args {
  uint32_t struct_size;
  uint32_t flags;            /* MLA_LAUNCH_* */
  uint64_t q;                /* [batch, q_len, heads, head_dim_k], or [tokens, heads, head_dim_k] with
                                q_offsets; 16-byte aligned */
  uint64_t kv;               /* [pages, page_size, head_dim_k], 16-byte aligned */
  uint64_t v;                /* values of their own [pages, page_size, head_dim_v]; 0: in kv */
  uint64_t page_table;       /* int32 [batch, max_pages_per_seq] */
  uint64_t seq_lens;         /* int32 [batch]: tokens in the cache, the newest q_len included; over all
                                ranks with cp_size; negative: 0 */
  uint64_t q_offsets;        /* int32 [batch + 1]: cumulative query counts, each count at most q_len;
                                0: q_len of every request */
  uint64_t out;              /* bf16 [batch, q_len, heads, head_dim_v] or ragged as q, 16-byte aligned */
  uint64_t lse;              /* float [batch, q_len, heads] or ragged as q; 0: not wanted */
  uint64_t q_scale_ptr;      /* device float, which wins over q_scale; 0: use q_scale */
  uint64_t kv_scale_ptr;     /* device float, which wins over kv_scale; 0: use kv_scale */
  uint64_t bad_page_counter; /* device uint32, > 0 afterwards exactly if a page id outside the pool, or
                                a token beyond the page table, was among the visible ones (which are
                                masked), or if it was before; 0: not wanted */
  uint64_t sparse_indices;   /* int32 [query tokens, sparse_count]: tokens of the pool, page *
                                page_size + offset, negative: none; 0: every visible token */
  uint64_t workspace;        /* of this device and stream, initialised once */
  uint64_t workspace_bytes;
  int64_t kv_page_stride;  /* bytes, multiple of 16; 0: dense. A page lies together, or pages interleave */
  int64_t kv_token_stride; /* bytes, multiple of 16; 0: dense */
  int64_t v_page_stride;   /* as above, for v; ignored when v is 0 */
  int64_t v_token_stride;
  int64_t page_table_stride; /* elements between rows; 0: max_pages_per_seq */
  int64_t q_token_stride;    /* bytes between query tokens, multiple of 16; 0: dense */
  int64_t q_head_stride;     /* bytes, multiple of 16; 0: dense */
  int64_t out_token_stride;  /* bytes, multiple of 16; 0: dense */
  int64_t out_head_stride;   /* bytes, multiple of 16; 0: dense */
  int64_t lse_token_stride;  /* elements; 0: dense */
  int64_t lse_head_stride;   /* elements; 0: dense */
  int64_t sparse_stride;     /* elements between rows of sparse_indices; 0: sparse_count */
  int64_t pages;             /* pages in the pool, 1 ... 2^31 - 1: bounds every read */
  int32_t batch;             /* requests, >= 1 */
  int32_t q_len;             /* query tokens per request, 1 ... 64, at most so many with q_offsets; 0: 1 */
  int32_t heads;             /* 1 ... 128 */
  int32_t page_size;         /* tokens, a multiple of the kernel's page_size_multiple (16) */
  int32_t max_pages_per_seq; /* >= 1; times page_size at most 2^31 - 1: bounds seq_lens */
  float softmax_scale;       /* finite and not 0: there is no default */
  float q_scale;             /* finite; 0: 1 (a wanted 0 comes by q_scale_ptr) */
  float kv_scale;            /* finite; 0: 1 (a wanted 0 comes by kv_scale_ptr) */
  int32_t max_splits;        /* most splits of a request's sequence; 1: none; 0: no cap */
  int32_t split_tokens;      /* fixed size of a split, tokens; 0: shares that balance the batch */
  int32_t window;            /* of the visible positions, the last so many; 0: all */
  int32_t cp_rank;           /* context parallel: this pool holds the blocks of cp_interleave tokens */
  int32_t cp_size;           /* whose number is cp_rank modulo cp_size; cp_size 0 or 1: every token */
  int32_t cp_interleave;     /* tokens; 0 with cp_size 0 or 1 */
  int32_t sparse_count;      /* columns of sparse_indices */
  int32_t max_sms;           /* most SMs used; 0: all */
  char* error;               /* receives the sentence of a failure; null: not wanted */
  uint64_t error_size;       /* bytes */
} mla_launch_args;
#define MLA_LAUNCH_ARGS_INIT                                                                                \
  {                                                                                                         \
    (uint32_t)sizeof(mla_launch_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                 \
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

/* ---- merge ------------------------------------------------------------------------------------ */

/*
 * out(t) = sum_s w_s partial_out_s(t) / sum_s w_s with w_s = exp(partial_lse_s(t)),
 * lse(t) = log sum_s w_s. A shard with lse = -inf is neutral; if all are, out = 0 and lse = -inf.
 */
typedef struct mla_merge_args {
  uint32_t struct_size;
  uint32_t flags;       /* MLA_LAUNCH_PDL or 0 */
  uint64_t partial_out; /* [shards, tokens, heads, head_dim_v] of partial_dtype, 16-byte aligned */
  uint64_t partial_lse; /* float [shards, tokens, heads], natural logarithm */
  uint64_t out;         /* [tokens, heads, head_dim_v] of out_dtype, 16-byte aligned */
  uint64_t lse;         /* float [tokens, heads]; 0: not wanted */
  int64_t partial_out_shard_stride; /* bytes, multiple of 16; 0: dense */
  int64_t partial_out_token_stride; /* bytes, multiple of 16; 0: dense */
  int64_t partial_out_head_stride;  /* bytes, multiple of 16; 0: dense */
  int64_t partial_lse_shard_stride; /* elements; 0: dense */
  int64_t partial_lse_token_stride; /* elements; 0: dense */
  int64_t partial_lse_head_stride;  /* elements; 0: dense */
  int64_t out_token_stride;         /* bytes, multiple of 16; 0: dense */
  int64_t out_head_stride;          /* bytes, multiple of 16; 0: dense */
  int64_t lse_token_stride;         /* elements; 0: dense */
  int64_t lse_head_stride;          /* elements; 0: dense */
  int32_t shards;                   /* >= 1 */
  int32_t tokens;                   /* >= 1 */
  int32_t heads;                    /* 1 ... 128 */
  int32_t max_sms;                  /* most SMs used; 0: all */
  char* error;                      /* receives the sentence of a failure; null: not wanted */
  uint64_t error_size;              /* bytes */
} mla_merge_args;
#define MLA_MERGE_ARGS_INIT \
  { (uint32_t)sizeof(mla_merge_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Merges partial results, for instance those of context-parallel ranks, with a kernel of kind
 * MLA_KIND_MERGE. Otherwise as mla_launch; needs no workspace. Errors: INVALID_ARGUMENT, WRONG_DEVICE,
 * DRIVER. Thread-safe. */
MLA_API mla_status mla_merge_launch(const mla_kernel* kernel, const mla_merge_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MLA_LOADER_H */

// SPDX-License-Identifier: Apache-2.0
#include "loader/src/launch.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"
#include "kernels/common/mla_schedule.h"
#include "loader/src/prepare.h"
#include "loader/src/select.h"

namespace mla::loader {
namespace {

constexpr int64_t kMaxStride = int64_t{1} << 40;       // bytes, exclusive: of a tensor map
constexpr int64_t kMaxPages = 0x7fffffff;              // page ids are int32
constexpr int64_t kMaxTokens = 0x7fffffff;             // sequence lengths are int32
constexpr int64_t kMaxTableStride = int64_t{1} << 31;  // elements
constexpr int64_t kMaxWork = 0x7fffffff;               // the kernel counts tiles in int32
constexpr unsigned __int128 kAddressEnd = static_cast<unsigned __int128>(1) << 64;

// A pool of keys or values as its tensor map sees it.
struct Pool {
  uint64_t address;
  int64_t token_stride;  // bytes
  int64_t page_stride;   // bytes
};

// Strides with the defaults filled in, and workers.
struct Plan {
  Pool k;
  Pool v;
  int64_t page_table_stride;
  int32_t workers;
};

Error check_address(const char* field, uint64_t address, uint64_t alignment, bool optional) {
  if (address == 0 && !optional) {
    return invalid_argument("args.", field, " is null; must be a device address aligned to ", alignment,
                            " bytes");
  }
  if (address % alignment == 0) return {};
  return invalid_argument("args.", field, " is ", Hex{address}, "; must be ", optional ? "null or " : "",
                          "a device address aligned to ", alignment, " bytes");
}

Error check_range(const char* field, int64_t value, int64_t least, int64_t most, std::string_view why = {}) {
  if (value >= least && value <= most) return {};
  return invalid_argument("args.", field, " is ", value, "; allowed: ", least, " ... ", most, why);
}

Error check_finite(const char* field, float value) {
  if (std::isfinite(value)) return {};
  return invalid_argument("args.", field, " is ", value, "; must be finite");
}

// Checks the strides of a pool and fills in those that are 0. `row_bytes` is one token.
Error check_pool(const char* address_field, const char* token_field, const char* page_field,
                 int64_t row_bytes, const mla_launch_args& args, Pool* pool) {
  if (pool->token_stride == 0) pool->token_stride = row_bytes;
  if (pool->token_stride < row_bytes || pool->token_stride >= kMaxStride || pool->token_stride % 16 != 0) {
    return invalid_argument("args.", token_field, " is ", pool->token_stride,
                            " bytes; must be 0 (dense) or a multiple of 16 from ", row_bytes,
                            " (one token) to below 2^40");
  }
  // Both factors are below 2^41.
  const __int128 span = static_cast<__int128>(args.page_size - 1) * pool->token_stride + row_bytes;
  if (pool->page_stride == 0) {
    const __int128 dense = static_cast<__int128>(args.page_size) * pool->token_stride;
    if (dense >= kMaxStride) {
      return invalid_argument("args.", token_field, " is ", pool->token_stride, " bytes; a dense page of ",
                              args.page_size, " tokens must be below 2^40 bytes");
    }
    pool->page_stride = static_cast<int64_t>(dense);
  }
  // Either a page's tokens lie together, or the pages interleave: token 0 of all pages, then token 1 ...
  const bool interleaved =
      pool->page_stride >= row_bytes &&
      pool->token_stride >= static_cast<__int128>(args.pages - 1) * pool->page_stride + row_bytes;
  if ((pool->page_stride < span && !interleaved) || pool->page_stride >= kMaxStride ||
      pool->page_stride % 16 != 0) {
    if (span >= kMaxStride) {
      return invalid_argument("args.", token_field, " is ", pool->token_stride, " bytes; a page of ",
                              args.page_size, " tokens must be below 2^40 bytes");
    }
    return invalid_argument("args.", page_field, " is ", pool->page_stride,
                            " bytes; must be 0 (dense) or a multiple of 16 from ", static_cast<int64_t>(span),
                            " (", args.page_size, " tokens) to below 2^40");
  }
  const unsigned __int128 bytes =
      static_cast<unsigned __int128>(args.pages - 1) * static_cast<uint64_t>(pool->page_stride) +
      static_cast<unsigned __int128>(span);
  if (pool->address + bytes > kAddressEnd) {
    return invalid_argument("args.", address_field, " is ", Hex{pool->address}, "; ", args.pages,
                            " pages of ", pool->page_stride,
                            " bytes reach past the end of the address space");
  }
  return {};
}

Error check_workspace(const mla_kernel& kernel, const char* address_field, uint64_t workspace,
                      const char* size_field, uint64_t bytes) {
  if (workspace == 0 || workspace % kWorkspaceAlign != 0) {
    return {MLA_ERROR_WORKSPACE, text(address_field, " is ", Hex{workspace},
                                      "; must be a device address aligned to ", kWorkspaceAlign, " bytes")};
  }
  if (bytes < kernel.workspace_bytes) {
    return {MLA_ERROR_WORKSPACE, text(size_field, " is ", bytes, "; ", kernel.entry->id, " needs ",
                                      kernel.workspace_bytes, " bytes on device ", kernel.device)};
  }
  return {};
}

// Checks every field and works out what follows from them.
Error check_args(const mla_kernel& kernel, const mla_launch_args& args, Plan* plan) {
  const manifest::Kernel& entry = *kernel.entry;
  const manifest::Config& config = entry.config;
#define MLA_CHECK(call) \
  if (Error error = call; !error.ok()) return error

  if ((args.flags & ~MLA_LAUNCH_PDL) != 0) {
    return invalid_argument("args.flags is ", Hex{args.flags}, "; allowed: 0, MLA_LAUNCH_PDL (0x1)");
  }
  if ((args.flags & MLA_LAUNCH_PDL) != 0 && (config.features & cubin::kFeaturePdl) == 0) {
    return invalid_argument("args.flags has MLA_LAUNCH_PDL, which ", entry.id,
                            " does not support; select with MLA_FEATURE_PDL, or leave the flag out");
  }

  MLA_CHECK(check_address("q", args.q, 16, false));
  MLA_CHECK(check_address("kv", args.kv, 16, false));
  MLA_CHECK(check_address("v", args.v, 16, true));
  MLA_CHECK(check_address("page_table", args.page_table, 4, false));
  MLA_CHECK(check_address("seq_lens", args.seq_lens, 4, false));
  MLA_CHECK(check_address("out", args.out, 16, false));
  MLA_CHECK(check_address("lse", args.lse, 4, true));
  MLA_CHECK(check_address("q_scale_ptr", args.q_scale_ptr, 4, true));
  MLA_CHECK(check_address("kv_scale_ptr", args.kv_scale_ptr, 4, true));
  MLA_CHECK(check_address("bad_page_counter", args.bad_page_counter, 4, true));
  if (args.v != 0 && (config.features & cubin::kFeatureSeparateValues) == 0) {
    return invalid_argument("args.v is ", Hex{args.v}, "; ", entry.id,
                            " reads values from kv: select with MLA_FEATURE_SEPARATE_VALUES, or give null");
  }
  if (args.lse != 0 && (config.features & cubin::kFeatureLse) == 0) {
    return invalid_argument("args.lse is ", Hex{args.lse}, "; ", entry.id,
                            " does not write it: select with MLA_FEATURE_LSE, or give null");
  }

  MLA_CHECK(check_range("batch", args.batch, 1, 0x7fffffff));
  MLA_CHECK(check_range("q_len", args.q_len, 1, kMaxQLen));
  if (args.heads < 1 || args.heads > static_cast<int32_t>(config.rows)) {
    return invalid_argument("args.heads is ", args.heads, "; allowed: 1 ... ", config.rows,
                            " (the row tile of ", entry.id, ")");
  }
  if (args.page_size < static_cast<int32_t>(config.page_size_min) ||
      args.page_size > static_cast<int32_t>(config.page_size_max) ||
      !std::has_single_bit(static_cast<uint32_t>(args.page_size))) {
    return invalid_argument("args.page_size is ", args.page_size, "; allowed: powers of two from ",
                            config.page_size_min, " to ", config.page_size_max, " (", entry.id, ")");
  }
  MLA_CHECK(check_range("pages", args.pages, 1, kMaxPages));
  MLA_CHECK(check_range("max_pages_per_seq", args.max_pages_per_seq, 1, kMaxTokens / args.page_size,
                        " (a sequence has at most 2^31 - 1 tokens)"));
  plan->page_table_stride = args.page_table_stride != 0 ? args.page_table_stride : args.max_pages_per_seq;
  if (plan->page_table_stride < args.max_pages_per_seq || plan->page_table_stride > kMaxTableStride) {
    return invalid_argument("args.page_table_stride is ", args.page_table_stride,
                            " elements; must be 0 (dense) or from max_pages_per_seq (",
                            args.max_pages_per_seq, ") to 2^31");
  }
  // The longest sequences that the page table can hold, in tiles.
  const int64_t capacity = int64_t{args.max_pages_per_seq} * args.page_size;
  const int64_t units = (capacity + config.tile_tokens - 1) / config.tile_tokens + kItemOverhead;
  if (const __int128 work = static_cast<__int128>(args.batch) * args.q_len * units; work > kMaxWork) {
    return invalid_argument("args.batch is ", args.batch, " with q_len ", args.q_len, " and room for ",
                            capacity, " tokens a sequence; allowed: batch * q_len * (tokens / ",
                            config.tile_tokens, " + ", kItemOverhead, ") up to 2^31 - 1");
  }

  const int64_t element = config.kv_dtype == cubin::kE4M3 ? 1 : 2;
  plan->k = {args.kv, args.kv_token_stride, args.kv_page_stride};
  MLA_CHECK(
      check_pool("kv", "kv_token_stride", "kv_page_stride", config.head_dim_k * element, args, &plan->k));
  if (args.v == 0) {
    plan->v = plan->k;
  } else {
    plan->v = {args.v, args.v_token_stride, args.v_page_stride};
    MLA_CHECK(
        check_pool("v", "v_token_stride", "v_page_stride", config.head_dim_v * element, args, &plan->v));
  }

  MLA_CHECK(check_finite("softmax_scale", args.softmax_scale));
  if (args.softmax_scale == 0.0f) {
    return invalid_argument(
        "args.softmax_scale is 0; must be given, there is no default (often 1/sqrt(192))");
  }
  MLA_CHECK(check_finite("q_scale", args.q_scale));
  MLA_CHECK(check_finite("kv_scale", args.kv_scale));
  MLA_CHECK(check_range("max_splits", args.max_splits, 0, 0x7fffffff));
  plan->workers = kernel.max_workers;
  if (args.max_sms != 0) {
    const int32_t cluster = static_cast<int32_t>(entry.launch.cluster_size);
    if (args.max_sms < cluster) {
      return invalid_argument("args.max_sms is ", args.max_sms, "; must be 0 (all) or at least ", cluster,
                              " (a cluster of ", entry.id, ")");
    }
    plan->workers = std::min(plan->workers, args.max_sms / cluster);
  }
#undef MLA_CHECK
  return check_workspace(kernel, "args.workspace", args.workspace, "args.workspace_bytes",
                         args.workspace_bytes);
}

int swizzle_of(uint32_t bytes) {
  return bytes == 128  ? cuda::kTensorMapSwizzle128B
         : bytes == 64 ? cuda::kTensorMapSwizzle64B
         : bytes == 32 ? cuda::kTensorMapSwizzle32B
                       : cuda::kTensorMapSwizzleNone;
}

Error encode(const mla_kernel& kernel, const char* field, const Pool& pool, uint32_t head_dim, uint32_t box,
             uint32_t swizzle, const mla_launch_args& args, TensorMap* map) {
  const uint64_t dims[3] = {head_dim, static_cast<uint64_t>(args.page_size),
                            static_cast<uint64_t>(args.pages)};
  const uint64_t strides[2] = {static_cast<uint64_t>(pool.token_stride),
                               static_cast<uint64_t>(pool.page_stride)};
  const uint32_t boxes[3] = {box, std::min(static_cast<uint32_t>(args.page_size), uint32_t{kTileTokens}), 1};
  const uint32_t ones[3] = {1, 1, 1};
  const int type =
      kernel.entry->config.kv_dtype == cubin::kE4M3 ? cuda::kTensorMapUint8 : cuda::kTensorMapBfloat16;
  const cuda::Result result = kernel.driver->cuTensorMapEncodeTiled(
      map, type, 3, reinterpret_cast<void*>(pool.address), dims, strides, boxes, ones,
      cuda::kTensorMapInterleaveNone, swizzle_of(swizzle), cuda::kTensorMapL2Promotion256B,
      cuda::kTensorMapOobFillZero);
  if (result == cuda::kSuccess) return {};
  return {MLA_ERROR_DRIVER,
          text(kernel.driver->describe("cuTensorMapEncodeTiled", result), ": tensor map of args.", field,
               " at ", Hex{pool.address}, ", dims ", head_dim, " x ", args.page_size, " x ", args.pages,
               ", strides ", pool.token_stride, " and ", pool.page_stride, " bytes")};
}

// Checks that the stream belongs to the context the kernel was prepared in.
Error check_stream(const mla_kernel& kernel, cuda::Stream stream) {
  const Driver& driver = *kernel.driver;
  cuda::Context context = nullptr;
  if (const cuda::Result result = driver.cuStreamGetCtx(stream, &context); result != cuda::kSuccess) {
    if (result == cuda::kErrorInvalidContext && stream == nullptr) {
      return {MLA_ERROR_WRONG_DEVICE,
              text("stream is null (the default stream) and no context is current on this "
                   "thread; ",
                   kernel.entry->id, " was prepared on device ", kernel.device)};
    }
    return driver.error("cuStreamGetCtx", result);
  }
  if (context == kernel.context) return {};
  ScopedContext scope(driver);
  cuda::Device device = -1;
  if (scope.enter(context).ok() && driver.cuCtxGetDevice(&device) == cuda::kSuccess &&
      device != kernel.device) {
    return {MLA_ERROR_WRONG_DEVICE,
            text("stream belongs to device ", device, "; ", kernel.entry->id, " was prepared on device ",
                 kernel.device, ": prepare it there too")};
  }
  return {MLA_ERROR_WRONG_DEVICE,
          text("stream belongs to another context of device ", kernel.device, " than the one ",
               kernel.entry->id, " was prepared in: prepare it in that context too")};
}

}  // namespace

Error launch(const mla_kernel& kernel, const mla_launch_args& args, void* stream_handle) {
  Plan plan;
  if (Error error = check_args(kernel, args, &plan); !error.ok()) return error;
  const cuda::Stream stream = static_cast<cuda::Stream>(stream_handle);
  if (Error error = check_stream(kernel, stream); !error.ok()) return error;
  ScopedContext scope(*kernel.driver);
  if (Error error = scope.enter(kernel.context); !error.ok()) return error;

  const manifest::Kernel& entry = *kernel.entry;
  const manifest::Config& config = entry.config;
  // Aligned as CUtensorMap is in NVIDIA's header. All that is not set below must be 0.
  alignas(128) DecodeParams params{};
  if (Error error = encode(kernel, "kv", plan.k, config.head_dim_k, config.k_box, config.k_swizzle, args,
                           &params.k_map);
      !error.ok()) {
    return error;
  }
  if (Error error = encode(kernel, args.v != 0 ? "v" : "kv", plan.v, config.head_dim_v, config.v_box,
                           config.v_swizzle, args, &params.v_map);
      !error.ok()) {
    return error;
  }
  params.q = args.q;
  params.page_table = args.page_table;
  params.seq_lens = args.seq_lens;
  params.out = args.out;
  params.lse = args.lse;
  params.q_scale_ptr = args.q_scale_ptr;
  params.kv_scale_ptr = args.kv_scale_ptr;
  params.workspace = args.workspace;
  params.bad_page_counter = args.bad_page_counter;
  params.page_table_stride = plan.page_table_stride;
  params.softmax_scale = args.softmax_scale;
  params.q_scale = args.q_scale;
  params.kv_scale = args.kv_scale;
  params.batch = args.batch;
  params.q_len = args.q_len;
  params.heads = args.heads;
  params.pages = static_cast<int32_t>(args.pages);
  params.max_pages_per_seq = args.max_pages_per_seq;
  params.page_size_log2 = std::countr_zero(static_cast<uint32_t>(args.page_size));
  params.max_splits = args.max_splits;
  params.zero = 0;

  cuda::LaunchAttribute attributes[2] = {};
  unsigned attribute_count = 0;
  if (kernel.cluster_attribute) {
    cuda::LaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = cuda::kLaunchClusterDimension;
    attribute.value.cluster_dim = {entry.launch.cluster_size, 1, 1};
  }
  if ((args.flags & MLA_LAUNCH_PDL) != 0) {
    cuda::LaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = cuda::kLaunchProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization_allowed = 1;
  }
  cuda::LaunchConfig launch{};
  launch.grid_x = static_cast<unsigned>(plan.workers) * entry.launch.cluster_size;
  launch.grid_y = launch.grid_z = 1;
  launch.block_x = entry.launch.threads;
  launch.block_y = launch.block_z = 1;
  launch.shared_bytes = entry.launch.dynamic_smem;
  launch.stream = stream;
  launch.attributes = attribute_count > 0 ? attributes : nullptr;
  launch.attribute_count = attribute_count;
  void* arguments[] = {&params};
  const cuda::Result result = kernel.driver->cuLaunchKernelEx(
      &launch, reinterpret_cast<cuda::Function>(kernel.kernel), arguments, nullptr);
  if (result == cuda::kSuccess) return {};
  return {MLA_ERROR_DRIVER,
          text(kernel.driver->describe("cuLaunchKernelEx", result), ": ", entry.id, " on device ",
               kernel.device, ", grid ", launch.grid_x, ", block ", launch.block_x, ", ", launch.shared_bytes,
               " bytes of dynamic shared memory")};
}

Error init_workspace(const mla_kernel& kernel, uint64_t workspace, uint64_t bytes, void* stream_handle) {
  if (Error error = check_workspace(kernel, "workspace", workspace, "workspace_bytes", bytes); !error.ok()) {
    return error;
  }
  const cuda::Stream stream = static_cast<cuda::Stream>(stream_handle);
  if (Error error = check_stream(kernel, stream); !error.ok()) return error;
  ScopedContext scope(*kernel.driver);
  if (Error error = scope.enter(kernel.context); !error.ok()) return error;
  const cuda::Result result = kernel.driver->cuMemsetD8Async(
      workspace, 0, workspace_counter_bytes(static_cast<uint64_t>(kernel.max_workers)), stream);
  return result == cuda::kSuccess ? Error() : kernel.driver->error("cuMemsetD8Async", result);
}

}  // namespace mla::loader

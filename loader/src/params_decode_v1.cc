// SPDX-License-Identifier: Apache-2.0
//
// mla::DecodeParams, version 1.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <new>
#include <numeric>
#include <tuple>

#include "loader/src/params.h"
#include "loader/src/words.h"

namespace mla::loader {
namespace {

static_assert(kDecodeParamsVersion == 1, "version 1 is filled here; a later one has a file of its own");

constexpr int64_t kMaxPages = 0x7fffffff;              // page ids are int32
constexpr int64_t kMaxTokens = 0x7fffffff;             // sequence lengths are int32
constexpr int64_t kMaxTableStride = int64_t{1} << 31;  // elements
constexpr int64_t kMaxUnits = 0x7fffffff;              // the kernel counts units of its schedule in int32
constexpr int32_t kMaxRanks = 1 << 16;
constexpr int32_t kMaxInterleave = 1 << 20;  // tokens

#define MLA_CHECK(call) \
  if (Error error = call; !error.ok()) return error

// Refuses an argument that is given and that the kernel does not honour.
template <typename Value>
Error check_honoured(const ParamsTarget& target, uint32_t feature, bool given, const char* field,
                     const Value& value, const char* absent = "0") {
  if (!given || (target.facts->features & feature) != 0) return {};
  const std::string name = feature_names(feature);
  return invalid_argument("args.", field, " is ", value, "; ", target.kernel, " lacks the feature ", name,
                          ": select with MLA_FEATURE_", name, ", or give ", absent);
}

// A pool of keys or values as its tensor map sees it.
struct Pool {
  const char* field;
  const char* token_field;
  const char* page_field;
  uint64_t address;
  int64_t row_bytes;     // of a token
  int64_t token_stride;  // bytes
  int64_t page_stride;   // bytes
};

// Checks the strides of a pool and fills in those that are 0.
Error check_pool(const mla_launch_args& args, Pool* pool) {
  const int64_t row_bytes = pool->row_bytes;
  if (pool->token_stride == 0) pool->token_stride = row_bytes;
  if (pool->token_stride < row_bytes || pool->token_stride >= kMaxStride || pool->token_stride % 16 != 0) {
    return invalid_argument("args.", pool->token_field, " is ", pool->token_stride,
                            " bytes; must be 0 (dense) or a multiple of 16 from ", row_bytes,
                            " (one token) to below 2^40");
  }
  // Both factors are below 2^41.
  const __int128 span = static_cast<__int128>(args.page_size - 1) * pool->token_stride + row_bytes;
  if (pool->page_stride == 0) {
    const __int128 dense = static_cast<__int128>(args.page_size) * pool->token_stride;
    if (dense >= kMaxStride) {
      return invalid_argument("args.", pool->token_field, " is ", pool->token_stride,
                              " bytes; a dense page of ", args.page_size, " tokens must be below 2^40 bytes");
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
      return invalid_argument("args.", pool->token_field, " is ", pool->token_stride, " bytes; a page of ",
                              args.page_size, " tokens must be below 2^40 bytes");
    }
    return invalid_argument("args.", pool->page_field, " is ", pool->page_stride,
                            " bytes; must be 0 (dense) or a multiple of 16 from ", static_cast<int64_t>(span),
                            " (", args.page_size, " tokens) to below 2^40");
  }
  return check_end(pool->field, pool->address,
                   static_cast<unsigned __int128>(args.pages - 1) * static_cast<uint64_t>(pool->page_stride) +
                       static_cast<unsigned __int128>(span));
}

// [tokens, heads, row] of q, out or lse: checks and fills in the strides.
Error check_tokens(const ParamsTarget& target, const char* address_field, uint64_t address, const Rows& rows,
                   int64_t* token_stride, int64_t* head_stride) {
  __int128 span = 0;
  MLA_CHECK(check_rows(rows, token_stride, head_stride, &span));
  const int64_t dense = rows.inner * rows.row;
  MLA_CHECK(
      check_honoured(target, feature::kSTRIDES, *head_stride != rows.row, rows.inner_field, *head_stride));
  MLA_CHECK(
      check_honoured(target, feature::kSTRIDES, *token_stride != dense, rows.outer_field, *token_stride));
  return check_end(address_field, address, static_cast<unsigned __int128>(span) * rows.unit_bytes);
}

Error fill_scales(const mla_launch_args& args, DecodeParams* params) {
  MLA_CHECK(check_finite("softmax_scale", args.softmax_scale));
  if (args.softmax_scale == 0.0f) {
    return invalid_argument(
        "args.softmax_scale is 0; must be given, there is no default: 1/sqrt(192) for DeepSeek and Kimi, "
        "whose heads have 128 + 64 elements before absorption (times mscale^2 with YaRN), 1/sqrt(576) only "
        "for a model that scales by the dimension after absorption");
  }
  MLA_CHECK(check_finite("q_scale", args.q_scale));
  MLA_CHECK(check_finite("kv_scale", args.kv_scale));
  params->softmax_scale = args.softmax_scale;
  params->q_scale = args.q_scale == 0.0f ? 1.0f : args.q_scale;
  params->kv_scale = args.kv_scale == 0.0f ? 1.0f : args.kv_scale;
  if (args.q_scale_ptr == 0 && args.kv_scale_ptr == 0) {
    // The kernel's product does not overflow on the way, but the whole must be a float, and scores are
    // multiplied by log2(e) besides.
    constexpr double kLargest = FLT_MAX / 1.4426950408889634;
    const double product = double{args.softmax_scale} * params->q_scale * params->kv_scale;
    if (std::abs(product) > kLargest) {
      return invalid_argument("args.softmax_scale * q_scale * kv_scale is ", product,
                              "; scores are float: its magnitude must be at most ", kLargest);
    }
  }
  return {};
}

Error fill_context_parallel(const ParamsTarget& target, const mla_launch_args& args, DecodeParams* params) {
  MLA_CHECK(check_range("cp_size", args.cp_size, 0, kMaxRanks));
  MLA_CHECK(check_honoured(target, feature::kCONTEXT_PARALLEL, args.cp_size > 1, "cp_size", args.cp_size));
  if (args.cp_size > 1) {
    MLA_CHECK(check_range("cp_rank", args.cp_rank, 0, args.cp_size - 1, " (cp_size - 1)"));
    MLA_CHECK(check_range("cp_interleave", args.cp_interleave, 1, kMaxInterleave));
  } else {
    MLA_CHECK(check_range("cp_rank", args.cp_rank, 0, 0, " (cp_size is 0 or 1)"));
    MLA_CHECK(check_range("cp_interleave", args.cp_interleave, 0, kMaxInterleave));
  }
  params->cp_rank = args.cp_rank;
  params->cp_size = args.cp_size;
  params->cp_interleave = args.cp_interleave;
  return {};
}

Error fill_sparse(const ParamsTarget& target, const mla_launch_args& args, int64_t tokens,
                  DecodeParams* params) {
  if (args.sparse_indices == 0)
    return check_range("sparse_count", args.sparse_count, 0, 0, " (sparse_indices is null)");
  MLA_CHECK(
      check_honoured(target, feature::kSPARSE, true, "sparse_indices", Hex{args.sparse_indices}, "null"));
  MLA_CHECK(check_range("sparse_count", args.sparse_count, 1, kMaxTokens));
  const int64_t stride = args.sparse_stride != 0 ? args.sparse_stride : args.sparse_count;
  if (stride < args.sparse_count || stride > kMaxTableStride) {
    return invalid_argument("args.sparse_stride is ", stride,
                            " elements; must be 0 (dense) or from sparse_count (", args.sparse_count,
                            ") to 2^31");
  }
  params->sparse_indices = args.sparse_indices;
  params->sparse_stride = stride;
  params->sparse_count = args.sparse_count;
  const unsigned __int128 elements =
      static_cast<unsigned __int128>(tokens - 1) * static_cast<uint64_t>(stride) +
      static_cast<uint64_t>(args.sparse_count);
  return check_end("sparse_indices", args.sparse_indices, elements * 4);
}

int tensor_map_type(uint32_t kv_dtype) {
  switch (dtype::bytes(kv_dtype)) {
    case 1:
      return cuda::kTensorMapUint8;
    case 2:
      return cuda::kTensorMapBfloat16;
    default:
      return cuda::kTensorMapFloat32;
  }
}

int swizzle_of(uint32_t bytes) {
  return bytes == 128  ? cuda::kTensorMapSwizzle128B
         : bytes == 64 ? cuda::kTensorMapSwizzle64B
         : bytes == 32 ? cuda::kTensorMapSwizzle32B
                       : cuda::kTensorMapSwizzleNone;
}

Error encode(const ParamsTarget& target, const DecodeParams& params, const char* field, uint64_t address,
             int64_t token_stride, int64_t page_stride, uint32_t head_dim, uint32_t box, uint32_t swizzle,
             TensorMap* map) {
  const uint64_t dims[3] = {head_dim, static_cast<uint64_t>(params.page_size),
                            static_cast<uint64_t>(params.pages)};
  const uint64_t strides[2] = {static_cast<uint64_t>(token_stride), static_cast<uint64_t>(page_stride)};
  const uint32_t boxes[3] = {box, 1u << params.box_tokens_log2, 1};
  const uint32_t ones[3] = {1, 1, 1};
  const int type = tensor_map_type(target.facts->kv_dtype);
  const cuda::Result result =
      target.driver->cuTensorMapEncodeTiled(map, type, 3, reinterpret_cast<void*>(address), dims, strides,
                                            boxes, ones, cuda::kTensorMapInterleaveNone, swizzle_of(swizzle),
                                            cuda::kTensorMapL2Promotion256B, cuda::kTensorMapOobFillZero);
  if (result == cuda::kSuccess) return {};
  return {MLA_ERROR_DRIVER,
          text(target.driver->describe("cuTensorMapEncodeTiled", result), ": tensor map of args.", field,
               " at ", Hex{address}, ", dims ", head_dim, " x ", params.page_size, " x ", params.pages,
               ", strides ", token_stride, " and ", page_stride, " bytes")};
}

}  // namespace

Error fill_decode_v1(const ParamsTarget& target, const mla_launch_args& given, void* out) {
  const cubin::Facts& facts = *target.facts;
  mla_launch_args args = given;
  if (args.q_len == 0) args.q_len = 1;
  DecodeParams& params = *new (out) DecodeParams{};

  MLA_CHECK(check_flags(target, args.flags, MLA_LAUNCH_PDL | MLA_LAUNCH_NON_CAUSAL));
  MLA_CHECK(check_address("q", args.q, 16, false));
  MLA_CHECK(check_address("kv", args.kv, 16, false));
  MLA_CHECK(check_address("v", args.v, 16, true));
  MLA_CHECK(check_address("page_table", args.page_table, 4, false));
  MLA_CHECK(check_address("seq_lens", args.seq_lens, 4, false));
  MLA_CHECK(check_address("q_offsets", args.q_offsets, 4, true));
  MLA_CHECK(check_address("out", args.out, 16, false));
  MLA_CHECK(check_address("lse", args.lse, 4, true));
  MLA_CHECK(check_address("q_scale_ptr", args.q_scale_ptr, 4, true));
  MLA_CHECK(check_address("kv_scale_ptr", args.kv_scale_ptr, 4, true));
  MLA_CHECK(check_address("bad_page_counter", args.bad_page_counter, 4, true));
  MLA_CHECK(check_address("sparse_indices", args.sparse_indices, 4, true));
  MLA_CHECK(check_honoured(target, feature::kSEPARATE_VALUES, args.v != 0, "v", Hex{args.v}, "null"));
  MLA_CHECK(check_honoured(target, feature::kLSE, args.lse != 0, "lse", Hex{args.lse}, "null"));
  MLA_CHECK(check_honoured(target, feature::kRAGGED_Q, args.q_offsets != 0, "q_offsets", Hex{args.q_offsets},
                           "null"));

  MLA_CHECK(check_range("batch", args.batch, 1, 0x7fffffff));
  MLA_CHECK(check_range("q_len", args.q_len, 1, kMaxQLen));
  const bool folds = (facts.requires_bits & requirement::kROW_TILES) != 0;
  const int32_t rows = static_cast<int32_t>(facts.rows);
  const int32_t most_heads = folds ? kMaxHeads : std::min(rows, kMaxHeads);
  MLA_CHECK(check_range("heads", args.heads, 1, most_heads));
  const int32_t multiple = static_cast<int32_t>(facts.page_size_multiple);
  if (args.page_size < 1 || args.page_size > static_cast<int32_t>(facts.page_size_max) ||
      args.page_size % multiple != 0) {
    return invalid_argument("args.page_size is ", args.page_size, "; allowed: multiples of ", multiple,
                            " up to ", facts.page_size_max, " (", target.kernel, ")");
  }
  MLA_CHECK(check_range("pages", args.pages, 1, kMaxPages));
  MLA_CHECK(check_range("max_pages_per_seq", args.max_pages_per_seq, 1, kMaxTokens / args.page_size,
                        " (a sequence has at most 2^31 - 1 tokens)"));
  params.page_table_stride = args.page_table_stride != 0 ? args.page_table_stride : args.max_pages_per_seq;
  if (params.page_table_stride < args.max_pages_per_seq || params.page_table_stride > kMaxTableStride) {
    return invalid_argument("args.page_table_stride is ", args.page_table_stride,
                            " elements; must be 0 (dense) or from max_pages_per_seq (",
                            args.max_pages_per_seq, ") to 2^31");
  }
  const int64_t tokens = int64_t{args.batch} * args.q_len;
  MLA_CHECK(fill_context_parallel(target, args, &params));
  MLA_CHECK(fill_sparse(target, args, tokens, &params));

  // The longest sequences that the page table can hold, in tiles; a row tile is an item of the schedule.
  const int64_t capacity = args.sparse_indices != 0 ? int64_t{args.sparse_count}
                                                    : int64_t{args.max_pages_per_seq} * args.page_size;
  const int64_t tiles = (capacity + facts.tile_tokens - 1) / facts.tile_tokens;
  const int64_t row_tiles = folds ? (int64_t{args.q_len} * args.heads + rows - 1) / rows : args.q_len;
  const int64_t item = tiles + facts.item_overhead;
  if (static_cast<__int128>(args.batch) * row_tiles * item > kMaxUnits) {
    return invalid_argument("args.batch is ", args.batch, " with ", row_tiles,
                            " row tiles a request and room for ", capacity,
                            " tokens; allowed: batch * row tiles * (tokens / ", facts.tile_tokens, " + ",
                            facts.item_overhead, ") up to 2^31 - 1");
  }

  const int64_t kv_element = dtype::bytes(facts.kv_dtype);
  Pool k{"kv",
         "kv_token_stride",
         "kv_page_stride",
         args.kv,
         facts.head_dim_k * kv_element,
         args.kv_token_stride,
         args.kv_page_stride};
  MLA_CHECK(check_pool(args, &k));
  Pool v = k;
  if (args.v != 0) {
    v = {"v",
         "v_token_stride",
         "v_page_stride",
         args.v,
         facts.head_dim_v * kv_element,
         args.v_token_stride,
         args.v_page_stride};
    MLA_CHECK(check_pool(args, &v));
  }

  params.q_token_stride = args.q_token_stride;
  params.q_head_stride = args.q_head_stride;
  params.out_token_stride = args.out_token_stride;
  params.out_head_stride = args.out_head_stride;
  params.lse_token_stride = args.lse_token_stride;
  params.lse_head_stride = args.lse_head_stride;
  MLA_CHECK(check_tokens(target, "q", args.q,
                         {"q_token_stride", "q_head_stride", "bytes", tokens, args.heads,
                          int64_t{facts.head_dim_k} * dtype::bytes(facts.q_dtype), 16, 1},
                         &params.q_token_stride, &params.q_head_stride));
  MLA_CHECK(check_tokens(target, "out", args.out,
                         {"out_token_stride", "out_head_stride", "bytes", tokens, args.heads,
                          int64_t{facts.head_dim_v} * dtype::bytes(facts.out_dtype), 16, 1},
                         &params.out_token_stride, &params.out_head_stride));
  MLA_CHECK(check_tokens(target, "lse", args.lse,
                         {"lse_token_stride", "lse_head_stride", "elements", tokens, args.heads, 1, 1, 4},
                         &params.lse_token_stride, &params.lse_head_stride));
  const unsigned __int128 table =
      static_cast<unsigned __int128>(args.batch - 1) * static_cast<uint64_t>(params.page_table_stride) +
      static_cast<uint64_t>(args.max_pages_per_seq);
  MLA_CHECK(check_end("page_table", args.page_table, table * 4));
  MLA_CHECK(check_end("seq_lens", args.seq_lens, static_cast<uint64_t>(args.batch) * 4));
  MLA_CHECK(check_end("q_offsets", args.q_offsets, (static_cast<uint64_t>(args.batch) + 1) * 4));

  MLA_CHECK(fill_scales(args, &params));
  MLA_CHECK(check_range("max_splits", args.max_splits, 0, 0x7fffffff));
  MLA_CHECK(check_range("split_tokens", args.split_tokens, 0, 0x7fffffff));
  MLA_CHECK(check_honoured(target, feature::kFIXED_SPLIT, args.split_tokens != 0, "split_tokens",
                           args.split_tokens));
  if (args.split_tokens % static_cast<int32_t>(facts.tile_tokens) != 0) {
    return invalid_argument("args.split_tokens is ", args.split_tokens, "; allowed: multiples of ",
                            facts.tile_tokens, " (a tile of ", target.kernel, ")");
  }
  MLA_CHECK(check_range("window", args.window, 0, 0x7fffffff));
  MLA_CHECK(check_honoured(target, feature::kWINDOW, args.window != 0, "window", args.window));
  MLA_CHECK(check_workspace(target, "args.workspace", args.workspace, "args.workspace_bytes",
                            args.workspace_bytes));

  params.q = args.q;
  params.kv = k.address;
  params.v = v.address;
  params.page_table = args.page_table;
  params.seq_lens = args.seq_lens;
  params.q_offsets = args.q_offsets;
  params.out = args.out;
  params.lse = args.lse;
  params.q_scale_ptr = args.q_scale_ptr;
  params.kv_scale_ptr = args.kv_scale_ptr;
  params.workspace = args.workspace;
  params.partials = args.workspace == 0 ? 0 : args.workspace + target.partials_offset;
  params.bad_page_counter = args.bad_page_counter;
  params.kv_page_stride = k.page_stride;
  params.kv_token_stride = k.token_stride;
  params.v_page_stride = v.page_stride;
  params.v_token_stride = v.token_stride;
  params.batch = args.batch;
  params.q_len = args.q_len;
  params.heads = args.heads;
  params.pages = static_cast<int32_t>(args.pages);
  params.max_pages_per_seq = args.max_pages_per_seq;
  params.page_size = args.page_size;
  // A page of one token has no divisor of 32 bits; kernels that take it have no use for one.
  if (args.page_size > 1) {
    const PageDivisor divisor = page_divisor(static_cast<uint32_t>(args.page_size));
    params.page_magic = divisor.magic;
    params.page_shift = divisor.shift;
  }
  params.causal = (args.flags & MLA_LAUNCH_NON_CAUSAL) == 0;
  params.window = args.window;
  // More splits than tiles there cannot be, and the kernel's arithmetic keeps clear of 2^31.
  params.max_splits = static_cast<int32_t>(std::min(int64_t{args.max_splits}, tiles));
  params.split_tokens = args.split_tokens;
  if (facts.tensor_maps != 0) {
    const uint32_t box_tokens = std::gcd(static_cast<uint32_t>(args.page_size), facts.box_tokens);
    params.box_tokens_log2 = static_cast<uint32_t>(std::countr_zero(box_tokens));
  }
  return {};
}

Error encode_decode_v1(const ParamsTarget& target, void* filled) {
  const cubin::Facts& facts = *target.facts;
  if (facts.tensor_maps == 0) return {};
  DecodeParams& params = *static_cast<DecodeParams*>(filled);
  MLA_CHECK(encode(target, params, "kv", params.kv, params.kv_token_stride, params.kv_page_stride,
                   facts.head_dim_k, facts.k_box, facts.k_swizzle, &params.k_map));
  return encode(target, params, params.v == params.kv ? "kv" : "v", params.v, params.v_token_stride,
                params.v_page_stride, facts.head_dim_v, facts.v_box, facts.v_swizzle, &params.v_map);
}
#undef MLA_CHECK

}  // namespace mla::loader

// SPDX-License-Identifier: Apache-2.0
//
// mla::MergeParams, version 1.
#include <new>

#include "loader/src/params.h"

namespace mla::loader {
namespace {

static_assert(kMergeParamsVersion == 1, "version 1 is filled here; a later one has a file of its own");

#define MLA_CHECK(call) \
  if (Error error = call; !error.ok()) return error

// [tokens, heads, row]: checks and fills in the strides.
Error check_tokens(const char* field, uint64_t address, const Rows& rows, int64_t* token_stride,
                   int64_t* head_stride) {
  __int128 span = 0;
  MLA_CHECK(check_rows(rows, token_stride, head_stride, &span));
  return check_end(field, address, static_cast<unsigned __int128>(span) * rows.unit_bytes);
}

// The same, `shards` times. Shards are only read, so the distance between them is free but for its
// multiple.
Error check_shards(const char* field, uint64_t address, const char* shard_field, int32_t shards,
                   const Rows& rows, int64_t* shard_stride, int64_t* token_stride, int64_t* head_stride) {
  __int128 span = 0;
  MLA_CHECK(check_rows(rows, token_stride, head_stride, &span));
  const int64_t most = kMaxStride / rows.unit_bytes;
  if (*shard_stride == 0) {
    const __int128 dense = static_cast<__int128>(rows.outer) * *token_stride;
    // Heads that are farther apart than tokens: the shard ends with the last head.
    const __int128 whole = dense > span ? dense : span;
    if (whole >= most) {
      return invalid_argument("args.", shard_field, " is 0 (dense), which is ", static_cast<uint64_t>(whole),
                              " ", rows.unit, "; must be below 2^40 bytes");
    }
    *shard_stride = static_cast<int64_t>(whole);
  }
  if (*shard_stride < rows.row || *shard_stride >= most || *shard_stride % rows.multiple != 0) {
    return invalid_argument("args.", shard_field, " is ", *shard_stride, " ", rows.unit,
                            "; must be 0 (dense) or ",
                            rows.multiple > 1 ? text("a multiple of ", rows.multiple, " ") : "", "from ",
                            rows.row, " (one row) to below 2^40 bytes");
  }
  const __int128 all = static_cast<__int128>(shards - 1) * *shard_stride + span;
  return check_end(field, address, static_cast<unsigned __int128>(all) * rows.unit_bytes);
}

}  // namespace

Error fill_merge_v1(const ParamsTarget& target, const mla_merge_args& args, void* out) {
  const cubin::Facts& facts = *target.facts;
  MergeParams& params = *new (out) MergeParams{};
  MLA_CHECK(check_flags(target, args.flags, MLA_LAUNCH_PDL));
  MLA_CHECK(check_address("partial_out", args.partial_out, 16, false));
  MLA_CHECK(check_address("partial_lse", args.partial_lse, 4, false));
  MLA_CHECK(check_address("out", args.out, 16, false));
  MLA_CHECK(check_address("lse", args.lse, 4, true));
  if (args.lse != 0 && (facts.features & feature::kLSE) == 0) {
    return invalid_argument("args.lse is ", Hex{args.lse}, "; ", target.kernel,
                            " lacks the feature LSE: select with MLA_FEATURE_LSE, or give null");
  }
  MLA_CHECK(check_range("shards", args.shards, 1, 1 << 16));
  MLA_CHECK(check_range("tokens", args.tokens, 1, 0x7fffffff / kMaxHeads));
  MLA_CHECK(check_range("heads", args.heads, 1, kMaxHeads));

  params.partial_out_shard_stride = args.partial_out_shard_stride;
  params.partial_out_token_stride = args.partial_out_token_stride;
  params.partial_out_head_stride = args.partial_out_head_stride;
  params.partial_lse_shard_stride = args.partial_lse_shard_stride;
  params.partial_lse_token_stride = args.partial_lse_token_stride;
  params.partial_lse_head_stride = args.partial_lse_head_stride;
  params.out_token_stride = args.out_token_stride;
  params.out_head_stride = args.out_head_stride;
  params.lse_token_stride = args.lse_token_stride;
  params.lse_head_stride = args.lse_head_stride;
  const int64_t dim = facts.head_dim_v;
  MLA_CHECK(check_shards("partial_out", args.partial_out, "partial_out_shard_stride", args.shards,
                         {"partial_out_token_stride", "partial_out_head_stride", "bytes", args.tokens,
                          args.heads, dim * dtype::bytes(facts.partial_dtype), 16, 1},
                         &params.partial_out_shard_stride, &params.partial_out_token_stride,
                         &params.partial_out_head_stride));
  MLA_CHECK(check_shards(
      "partial_lse", args.partial_lse, "partial_lse_shard_stride", args.shards,
      {"partial_lse_token_stride", "partial_lse_head_stride", "elements", args.tokens, args.heads, 1, 1, 4},
      &params.partial_lse_shard_stride, &params.partial_lse_token_stride, &params.partial_lse_head_stride));
  MLA_CHECK(check_tokens("out", args.out,
                         {"out_token_stride", "out_head_stride", "bytes", args.tokens, args.heads,
                          dim * dtype::bytes(facts.out_dtype), 16, 1},
                         &params.out_token_stride, &params.out_head_stride));
  MLA_CHECK(check_tokens(
      "lse", args.lse, {"lse_token_stride", "lse_head_stride", "elements", args.tokens, args.heads, 1, 1, 4},
      &params.lse_token_stride, &params.lse_head_stride));
  params.partial_out = args.partial_out;
  params.partial_lse = args.partial_lse;
  params.out = args.out;
  params.lse = args.lse;
  params.shards = args.shards;
  params.tokens = args.tokens;
  params.heads = args.heads;
  return {};
}
#undef MLA_CHECK

}  // namespace mla::loader

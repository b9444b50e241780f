// SPDX-License-Identifier: Apache-2.0
//
// The parameter structs that kernels take by value. Included by device code, by the loader and by
// the tests: plain C++, no CUDA headers. Every struct has a name (MLA_PARAMS_WORDS) and a version;
// a cubin says which one it takes, and one file of the loader fills each.
//
// In both structs 0 means absent, for every field that says so.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define MLA_HD __host__ __device__
#else
#define MLA_HD
#endif

namespace mla {

// Storage for a CUtensorMap (128 bytes, 64-byte aligned), opaque on the host.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// Division of token numbers by the page size, which is any multiple of 16: n / d for 0 <= n < 2^31
// is (n * magic) >> (32 + shift). With l = ceil(log2 d), magic = ceil(2^(31 + l) / d) fits 32 bits
// for d > 1, and the error n * (magic * d - 2^(31 + l)) stays below 2^(31 + l).
struct PageDivisor {
  uint32_t magic;
  uint32_t shift;
};

constexpr PageDivisor page_divisor(uint32_t page_size) {  // 2 ... 2^30
  uint32_t log2 = 0;
  while ((uint64_t{1} << log2) < page_size) ++log2;
  const uint64_t magic = ((uint64_t{1} << (31 + log2)) + page_size - 1) / page_size;
  return {static_cast<uint32_t>(magic), log2 - 1};
}

MLA_HD constexpr int32_t page_of(int32_t token, uint32_t magic, uint32_t shift) {
  return static_cast<int32_t>((static_cast<uint64_t>(static_cast<uint32_t>(token)) * magic) >> (32 + shift));
}

inline constexpr uint32_t kDecodeParamsVersion = 1;

struct alignas(64) DecodeParams {
  // Tensor maps of the key and value pools, 3-D {elements, page_size tokens, pages}; box {k_box or
  // v_box elements, 2^box_tokens_log2 tokens, 1}. Reads outside fill with zero. Zero bytes for
  // kernels without tensor maps.
  TensorMap k_map;
  TensorMap v_map;

  // ---- device addresses ----
  uint64_t q;                 // [batch, q_len, heads, head_dim_k], or [tokens, heads, head_dim_k]
                              // with q_offsets; 16-byte aligned
  uint64_t kv;                // the key pool, the same as in k_map
  uint64_t v;                 // the value pool, the same as in v_map (kv where values lie in keys)
  uint64_t page_table;        // int32 [batch, max_pages_per_seq], rows page_table_stride apart
  uint64_t seq_lens;          // int32 [batch]; over all ranks when cp_size > 1
  uint64_t q_offsets;         // int32 [batch + 1], cumulative query counts, each count <= q_len;
                              // 0: q_len of every request
  uint64_t out;               // bf16 [batch, q_len, heads, head_dim_v] or ragged as q, 16-byte aligned
  uint64_t lse;               // float [batch, q_len, heads] or ragged as q, natural logarithm; 0: absent
  uint64_t q_scale_ptr;       // float; 0: q_scale
  uint64_t kv_scale_ptr;      // float; 0: kv_scale
  uint64_t workspace;         // WorkspaceHeader, then counters, zero between launches
  uint64_t partials;          // partial results; what lies there between launches does not matter
  uint64_t bad_page_counter;  // uint32, > 0 afterwards exactly if a page id outside [0, pages) or
                              // a token beyond the page table was among the visible ones; 0: absent
  uint64_t sparse_indices;    // int32 [query tokens, sparse_count]: tokens of the pool, page * page_size
                              // + offset, < 0: none; 0: absent
  uint64_t reserved_ptr[2];   // 0

  // ---- strides ----
  int64_t page_table_stride;  // elements
  int64_t kv_page_stride;     // bytes
  int64_t kv_token_stride;    // bytes
  int64_t v_page_stride;      // bytes
  int64_t v_token_stride;     // bytes
  int64_t q_token_stride;     // bytes between query tokens
  int64_t q_head_stride;      // bytes
  int64_t out_token_stride;   // bytes
  int64_t out_head_stride;    // bytes
  int64_t lse_token_stride;   // elements
  int64_t lse_head_stride;    // elements
  int64_t sparse_stride;      // elements between rows of sparse_indices

  // ---- numbers ----
  float softmax_scale;  // score = softmax_scale * q_scale * kv_scale * <q, k>
  float q_scale;
  float kv_scale;
  int32_t batch;
  int32_t q_len;  // query tokens of a request, at most this many with q_offsets
  int32_t heads;
  int32_t pages;              // in the pool
  int32_t max_pages_per_seq;  // columns of page_table
  int32_t page_size;          // tokens
  uint32_t page_magic;        // page_divisor(page_size)
  uint32_t page_shift;
  uint32_t box_tokens_log2;  // tokens of a box: gcd(page_size, box_tokens of the kernel)
  int32_t causal;            // 1: query token t sees positions < seq_len - (count - 1) + t; 0: all
  int32_t window;            // of those, the last so many; 0: no window
  int32_t max_splits;        // most splits of an item; 0: no cap
  int32_t split_tokens;      // fixed size of a split; 0: balanced shares
  int32_t cp_rank;           // this pool holds the blocks of cp_interleave tokens whose number is
  int32_t cp_size;           // cp_rank modulo cp_size; cp_size 0 or 1: it holds every token
  int32_t cp_interleave;
  int32_t sparse_count;  // columns of sparse_indices
  int32_t zero;          // always 0; the compiler does not know it (see ptx::after)
  int32_t reserved[11];  // 0
};

static_assert(sizeof(TensorMap) == 128, "CUtensorMap is 128 bytes");
static_assert(offsetof(DecodeParams, q) == 256, "tensor maps come first, 64-byte aligned");
static_assert(offsetof(DecodeParams, page_table_stride) == 384, "DecodeParams layout");
static_assert(offsetof(DecodeParams, softmax_scale) == 480, "DecodeParams layout");
static_assert(sizeof(DecodeParams) == 640,
              "DecodeParams is part of the kernel ABI: raise kDecodeParamsVersion");

inline constexpr uint32_t kMergeParamsVersion = 1;

// `shards` partial results of the same query tokens into one: out = sum_i w_i out_i / sum_i w_i with
// w_i = exp(lse_i), lse = log sum_i w_i. A shard with lse = -inf is neutral.
struct alignas(64) MergeParams {
  uint64_t partial_out;              // [shards, tokens, heads, head_dim_v] of partial_dtype, 16-byte aligned
  uint64_t partial_lse;              // float [shards, tokens, heads], natural logarithm
  uint64_t out;                      // [tokens, heads, head_dim_v] of out_dtype, 16-byte aligned
  uint64_t lse;                      // float [tokens, heads]; 0: absent
  int64_t partial_out_shard_stride;  // bytes
  int64_t partial_out_token_stride;  // bytes
  int64_t partial_out_head_stride;   // bytes
  int64_t partial_lse_shard_stride;  // elements
  int64_t partial_lse_token_stride;  // elements
  int64_t partial_lse_head_stride;   // elements
  int64_t out_token_stride;          // bytes
  int64_t out_head_stride;           // bytes
  int64_t lse_token_stride;          // elements
  int64_t lse_head_stride;           // elements
  int32_t shards;
  int32_t tokens;
  int32_t heads;
  int32_t reserved[1];  // 0
};

static_assert(sizeof(MergeParams) == 128, "MergeParams is part of the kernel ABI: raise kMergeParamsVersion");

// ---- workspace -----------------------------------------------------------------------------------
//
// [ WorkspaceHeader | counters ]   zeroed_bytes of the bundle's largest rule; made once by the
//                                  library (zero, then the header) and left so by every launch
// [ partial results ]              fixed_bytes + bytes_per_worker * workers of the kernel at hand
//
// A loader gives every kernel of a bundle the same `partials` address, so that partial results of one
// never lie in the counters of another.
inline constexpr uint64_t kWorkspaceAlign = 256;
inline constexpr uint64_t kWorkspaceMagic = 0x314b524f5741'4c4dull;  // "MLAWORK1"

struct WorkspaceHeader {
  uint64_t magic;         // kWorkspaceMagic once the workspace is initialised. A kernel that finds
                          // anything else touches no workspace and gives NaN for out and lse.
  uint64_t reserved[31];  // 0
};
static_assert(sizeof(WorkspaceHeader) == kWorkspaceAlign, "counters begin aligned");

MLA_HD constexpr uint64_t align_up(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// ---- which tokens a query token sees -------------------------------------------------------------

// Of the first `n` positions of a sequence (n >= 0), those that the pool of this rank holds.
MLA_HD constexpr int32_t local_tokens(int32_t n, int32_t rank, int32_t size, int32_t interleave) {
  if (size <= 1) return n;
  const int32_t block = n / interleave;
  const int32_t position = block % size;  // of the rank that holds the block which n ends in
  const int32_t rest = rank < position ? interleave : rank == position ? n % interleave : 0;
  return block / size * interleave + rest;
}

// Positions (over all ranks) that query token t of `count` sees: any negative seq_len is empty.
MLA_HD constexpr int32_t visible_positions(int32_t seq_len, int32_t count, int32_t t, int32_t causal) {
  if (seq_len <= 0) return 0;
  const int32_t visible = causal ? seq_len - (count - 1) + t : seq_len;  // count is small: no overflow
  return visible > 0 ? visible : 0;
}

}  // namespace mla

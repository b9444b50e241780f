// SPDX-License-Identifier: Apache-2.0
//
// The one parameter struct that every MLA decode kernel takes by value, and the layout of the
// workspace it points to. Included by device code, by the loader and by the tests: plain C++,
// no CUDA headers.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define MLA_HD __host__ __device__
#else
#define MLA_HD
#endif

namespace mla {

// Incremented with every change of DecodeParams or of the workspace layout. A loader refuses a
// kernel of another version.
inline constexpr uint32_t kParamsVersion = 1;

// Dimensions shared by all DeepSeek-style MLA models.
inline constexpr int kHeadDimK = 576;   // 512 latent + 64 rope
inline constexpr int kHeadDimV = 512;   // the latent part
inline constexpr int kTileTokens = 64;  // tokens of one KV tile

// Storage for a CUtensorMap (128 bytes, 64-byte aligned), opaque on the host.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

struct alignas(64) DecodeParams {
  // Tensor map of the key pool, 3-D {576 elements, page_size tokens, pages}; box
  // {K box elements, min(page_size, 64), 1}. Reads outside it fill with zero.
  TensorMap k_map;
  // Tensor map of the value pool, 3-D {512 elements, page_size tokens, pages}; box
  // {V box elements, min(page_size, 64), 1}.
  TensorMap v_map;

  uint64_t q;                 // [batch, q_len, heads, 576], dense, 16-byte aligned
  uint64_t page_table;        // int32 [batch, max_pages_per_seq], row stride page_table_stride
  uint64_t seq_lens;          // int32 [batch]
  uint64_t out;               // bf16 [batch, q_len, heads, 512], dense, 16-byte aligned
  uint64_t lse;               // float [batch, q_len, heads], natural logarithm; 0: not wanted
  uint64_t q_scale_ptr;       // float; 0: use q_scale
  uint64_t kv_scale_ptr;      // float; 0: use kv_scale
  uint64_t workspace;         // workspace_bytes(rows, clusters), counters zero before first use
  uint64_t bad_page_counter;  // uint32, incremented for each (query token, KV tile, page) whose
                              // page id is outside [0, pages); 0: not wanted

  int64_t page_table_stride;  // elements between rows of page_table

  float softmax_scale;  // factor of q_scale * kv_scale * <q, k>
  float q_scale;
  float kv_scale;

  int32_t batch;
  int32_t q_len;
  int32_t heads;              // <= rows of the kernel
  int32_t pages;              // pages in the pool
  int32_t max_pages_per_seq;  // columns of page_table; bounds seq_lens
  int32_t page_size_log2;     // tokens per page, a power of two
  int32_t max_splits;         // cap on the splits of one request's query token; 0: no cap
  int32_t zero;               // always 0; the compiler does not know it (see ptx::after)
};

static_assert(sizeof(TensorMap) == 128, "CUtensorMap is 128 bytes");
static_assert(sizeof(DecodeParams) == 384, "DecodeParams is part of the kernel ABI: raise kParamsVersion");
static_assert(offsetof(DecodeParams, q) == 256, "tensor maps come first, 64-byte aligned");
static_assert(offsetof(DecodeParams, softmax_scale) == 336, "DecodeParams layout");

// Workspace of the persistent kernels. A worker (one cluster of the cluster family) can share at
// most two query tokens with its neighbours: the one it starts in the middle of and the one it
// leaves unfinished. So two slots a worker hold all partial results, whatever the batch.
//
//   uint32 counters[kCounterKinds][2 * workers][kValueHalves]   zero between launches
//   float4 row_state[2 * workers][kValueHalves][rows]           running maximum (log2), row sum of P
//                                                               as quantised, exact row sum; unused
//   float  acc     [2 * workers][kValueHalves][rows * 256]      unnormalised output, in the
//                                                               order of the math threads
inline constexpr int kMaxWorkers = 128;  // no launch has more workers
inline constexpr int kValueHalves = 2;   // the value columns are split over two CTAs
inline constexpr int kCounterKinds = 2;  // arrivals within a merge group, arrivals of groups
inline constexpr uint64_t kWorkspaceAlign = 256;

MLA_HD constexpr uint64_t align_up(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// The same for every number of workers: one workspace serves launches with few workers (a cap on the
// SMs) and with many, and the partial results of the former must not lie in counters of the latter.
MLA_HD constexpr uint64_t workspace_counter_bytes(uint64_t /*workers*/) {
  return align_up(kCounterKinds * 2 * kMaxWorkers * kValueHalves * sizeof(uint32_t), kWorkspaceAlign);
}

MLA_HD constexpr uint64_t workspace_row_state_bytes(uint64_t rows, uint64_t workers) {
  return align_up(2 * workers * kValueHalves * rows * 4 * sizeof(float), kWorkspaceAlign);
}

MLA_HD constexpr uint64_t workspace_acc_bytes(uint64_t rows, uint64_t workers) {
  return 2 * workers * rows * kHeadDimV * sizeof(float);
}

// Bytes of workspace that a launch of at most `workers` workers with a row tile of `rows` needs.
MLA_HD constexpr uint64_t workspace_bytes(uint64_t rows, uint64_t workers) {
  return workspace_counter_bytes(workers) + workspace_row_state_bytes(rows, workers) +
         workspace_acc_bytes(rows, workers);
}

}  // namespace mla

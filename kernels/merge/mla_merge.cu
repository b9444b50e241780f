// SPDX-License-Identifier: Apache-2.0
//
// Partial results of the same query tokens, for instance of context-parallel ranks, into one:
// out = sum_i w_i out_i / sum_i w_i with w_i = exp(lse_i), lse = log sum_i w_i.
//
// Macros (one set per configuration of manifest/matrix.json):
//   MLA_PARTIAL_F32    0: partial outputs are bf16, 1: float
//   MLA_KERNEL_SYMBOL  name of the kernel
//   GENERATE_CUBIN     device code alone
//
// A warp merges a (token, head) row by itself, shards in their order, so that the result depends on
// nothing else. A shard with lse = -inf saw no token: it is neutral, whatever lies in its output. NaN
// in an lse, or in an output that counts, comes out.
#include "kernels/common/mla_cubin_emit.h"
#include "kernels/common/mla_params.h"
#include "kernels/common/ptx/cluster.cuh"
#include "kernels/common/ptx/math.cuh"

#ifndef MLA_PARTIAL_F32
#define MLA_PARTIAL_F32 0
#endif
#ifndef MLA_KERNEL_SYMBOL
#define MLA_KERNEL_SYMBOL mla_merge
#endif

namespace mla::merge {

inline constexpr bool kPartialF32 = MLA_PARTIAL_F32 != 0;
inline constexpr int kHeadDimV = 512;
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMaxWorkers = 4096;
// A lane has groups of 8 columns, so that a warp reads and writes whole lines.
inline constexpr int kGroup = 8;
inline constexpr int kGroups = kHeadDimV / (32 * kGroup);

constexpr cubin::Facts kFacts = {
    .kind = kind::kMERGE,
    .requires_bits = 0,
    .family = family::kMERGE,
    .partial_dtype = kPartialF32 ? dtype::kF32 : dtype::kBF16,
    .out_dtype = dtype::kBF16,
    .head_dim_v = kHeadDimV,
    .features = feature::kLSE | feature::kPDL | feature::kSTRIDES,
    .threads = kThreads,
    .cluster_size = 1,
    .dynamic_smem = 0,
    .zeroed_bytes = 0,
    .fixed_bytes = 0,
    .bytes_per_worker = 0,
    .max_workers = kMaxWorkers,
    .tile_cost = 1,  // there is nothing to choose from
    .params_struct = params_struct::kMERGE,
    .params_version = kMergeParamsVersion,
    .params_bytes = sizeof(MergeParams),
};
MLA_EMIT_MERGE_FACTS;

__device__ __forceinline__ void load_group(const uint8_t* row, int column, float (&v)[kGroup]) {
  if constexpr (kPartialF32) {
#pragma unroll
    for (int i = 0; i < kGroup; i += 4) {
      const float4 f = __ldg(reinterpret_cast<const float4*>(row + (column + i) * sizeof(float)));
      v[i] = f.x;
      v[i + 1] = f.y;
      v[i + 2] = f.z;
      v[i + 3] = f.w;
    }
  } else {
    const uint4 u = __ldg(reinterpret_cast<const uint4*>(row + column * sizeof(uint16_t)));
    const uint32_t words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

// Executed by one warp.
__device__ __forceinline__ void merge_row(const MergeParams& params, int64_t token, int64_t head, int lane) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr float kLn2 = 0.6931471805599453f;
  const float* lses = reinterpret_cast<const float*>(params.partial_lse) +
                      token * params.partial_lse_token_stride + head * params.partial_lse_head_stride;
  const uint8_t* rows = reinterpret_cast<const uint8_t*>(params.partial_out) +
                        token * params.partial_out_token_stride + head * params.partial_out_head_stride;
  float most = -INFINITY;  // NaN does not count, but spoils the sum
  for (int shard = lane; shard < params.shards; shard += 32) {
    most = fmaxf(most, lses[shard * params.partial_lse_shard_stride]);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, d));

  float acc[kGroups][kGroup] = {};
  float sum = 0.f;
  for (int shard = 0; shard < params.shards; ++shard) {
    const float lse = lses[shard * params.partial_lse_shard_stride];
    if (lse == -INFINITY) continue;
    const float weight = ptx::ex2((lse - most) * kLog2E);
    sum += weight;
    const uint8_t* row = rows + shard * params.partial_out_shard_stride;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float v[kGroup];
      load_group(row, (g * 32 + lane) * kGroup, v);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) acc[g][i] += weight * v[i];
    }
  }
  const bool empty = sum == 0.f;
  const float scale = empty ? 0.f : 1.f / sum;
  if (lane == 0 && params.lse != 0) {
    reinterpret_cast<float*>(params.lse)[token * params.lse_token_stride + head * params.lse_head_stride] =
        empty ? -INFINITY : most + kLn2 * ptx::lg2(sum);
  }
  uint8_t* out = reinterpret_cast<uint8_t*>(params.out) + token * params.out_token_stride +
                 head * params.out_head_stride;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const auto pair = [&](int i) { return ptx::cvt_bf16x2(acc[g][i] * scale, acc[g][i + 1] * scale); };
    *reinterpret_cast<uint4*>(out + (g * 32 + lane) * kGroup * sizeof(uint16_t)) =
        uint4{pair(0), pair(2), pair(4), pair(6)};
  }
}

}  // namespace mla::merge

extern "C" __global__ void __launch_bounds__(mla::merge::kThreads)
    MLA_KERNEL_SYMBOL(const __grid_constant__ mla::MergeParams params) {
  using namespace mla::merge;
  // What follows reads what the previous kernel of the stream wrote.
  mla::ptx::griddepcontrol_wait();
  const int64_t rows = static_cast<int64_t>(params.tokens) * params.heads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows; row += step) {
    const int64_t token = row / params.heads;
    merge_row(params, token, row - token * params.heads, threadIdx.x % 32);
  }
  mla::ptx::griddepcontrol_launch_dependents();
}

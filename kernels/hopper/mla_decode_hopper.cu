// SPDX-License-Identifier: Apache-2.0
//
// MLA decode attention, Hopper family: e4m3 queries and cache, bf16 output, on wgmma.
//
// Macros (one set per configuration of manifest/matrix.json):
//   MLA_ROWS           row tile: 16, 32, 64; 128 as a cluster of two CTAs that share the KV tiles
//   MLA_KERNEL_SYMBOL  name of the kernel
//   GENERATE_CUBIN     device code alone
#include <cmath>

#include "kernels/common/mla_cubin_emit.h"
#include "kernels/hopper/config.cuh"
#include "kernels/hopper/load.cuh"
#include "kernels/hopper/math.cuh"

#ifndef MLA_KERNEL_SYMBOL
#define MLA_KERNEL_SYMBOL mla_decode_hopper
#endif

namespace mla::hopper {

constexpr cubin::Facts kFacts = {
    .kind = kind::kDECODE,
    .requires_bits = requirement::kROW_TILES | requirement::kPARTIALS,
    .family = family::kHOPPER,
    .q_dtype = dtype::kE4M3,
    .kv_dtype = dtype::kE4M3,
    .out_dtype = dtype::kBF16,
    .arithmetic = arithmetic::kQUANTISED,
    .mma = mma_form::kWGMMA,
    .cache_layout = cache_layout::kDENSE,
    .rows = kRows,
    .head_dim_k = kHeadDimK,
    .head_dim_v = kHeadDimV,
    .tile_tokens = kTileTokens,
    .page_size_multiple = 16,
    .page_size_max = 1 << 20,
    .features = feature::kLSE | feature::kPDL | feature::kSTRIDES | feature::kRAGGED_Q |
                feature::kNON_CAUSAL | feature::kCONTEXT_PARALLEL,
    .tensor_maps = 1,
    .box_tokens = kTileTokens,
    .k_box = kRope,  // the key map serves the rope part, the value map the latent one
    .k_swizzle = kRope,
    .v_box = kPanel,
    .v_swizzle = kPanel,
    .threads = kThreads,
    .cluster_size = kClusterSize,
    .dynamic_smem = kDynamicSmem,
    .item_overhead = kItemOverhead,
    .min_share = kMinShare,
    .max_flat_merge = kMaxFlatMerge,
    .zeroed_bytes = Layout::kZeroedBytes,
    .fixed_bytes = 0,
    .bytes_per_worker = Layout::kBytesPerWorker,
    .max_workers = kMaxWorkers,
    .tile_cost = kTileCost,
    .params_struct = params_struct::kDECODE,
    .params_version = kDecodeParamsVersion,
    .params_bytes = sizeof(DecodeParams),
};
MLA_EMIT_DECODE_FACTS;

}  // namespace mla::hopper

extern "C" __global__ void __cluster_dims__(mla::hopper::kClusterSize, 1, 1)
    __launch_bounds__(mla::hopper::kThreads, 1)
        MLA_KERNEL_SYMBOL(const __grid_constant__ mla::DecodeParams params) {
  using namespace mla;
  using namespace mla::hopper;
  extern __shared__ __align__(1024) uint8_t smem_base[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_base);

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int rank = kClusterSize > 1 ? ptx::cluster_ctarank() : 0;
  MLA_MARK(kStart);

  if (warp == kLoaderWarp && lane == 0) {
    ptx::prefetch_tensor_map(&params.k_map);
    ptx::prefetch_tensor_map(&params.v_map);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::smem_addr(&smem.full[i]), 1);
      ptx::mbarrier_init(ptx::smem_addr(&smem.empty[i]), kMathWarps * kClusterSize);
    }
    smem.queue.init_barriers();
    for (uint64_t& bar : smem.splits_full) ptx::mbarrier_init(ptx::smem_addr(&bar), 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (kClusterSize > 1) {  // the barriers are ready in every CTA of the cluster
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  MLA_MARK(kReady);
  // Everything below may read what the previous kernel of the stream wrote.
  ptx::griddepcontrol_wait();

  if (warp >= kMathWarps) {
    ptx::setmaxnreg_dec<kIoRegisters>();
    if (warp == kLoaderWarp) {
      load_tiles(params, smem, rank, lane);
    } else if (warp == kSchedulerWarp) {
      const int worker = ptx::clusterid_x(), workers = ptx::nclusterid_x();
      int pieces = 0;
      const auto on_split = [&](const Line& line, const Item& item) {
        smem.splits[pieces].fill(params, line, item, worker, lane);
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(ptx::smem_addr(&smem.splits_full[pieces]));
        ++pieces;
      };
      if (is_plain(params)) {
        schedule_plain(rule(), params, smem.queue, worker, workers, lane, on_split);
      } else {
        schedule(rule(), params, smem.queue, worker, workers, lane, on_split);
      }
    }
  } else {
    ptx::setmaxnreg_inc<kMathRegisters>();
    MathWarp(params, smem, rank, warp, lane).run();
  }

  MLA_MARK(kEnd);
  ptx::griddepcontrol_launch_dependents();
  if constexpr (kClusterSize > 1) {  // no CTA leaves while another may still write to its shared memory
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

// SPDX-License-Identifier: Apache-2.0
//
// MLA decode attention, cluster family: e4m3 queries and cache, bf16 output, on mma.sync.
//
// Macros (one set per configuration of manifest/matrix.json):
//   MLA_ROWS              row tile, 128
//   MLA_MMA_BLOCK_SCALED  0: plain e4m3 MMA, 1: the block-scaled form (sm_120a/f)
//   MLA_KERNEL_SYMBOL     name of the kernel
//   GENERATE_CUBIN        device code alone
//
// A cluster of four CTAs walks the KV tiles of its share (mla_schedule.h). CTAs 0 and 1 compute the
// scores and softmax of alternate tiles, CTAs 2 and 3 multiply P by half of the value columns each:
//
//   K --TMA--> producer 0 --P, max, sum (st.async)--> consumers 2 and 3 <--TMA-- V
//              producer 1 --'
//   producer 0 <-- running maximum, tile by tile --> producer 1
#include "kernels/cluster/config.cuh"
#include "kernels/cluster/consumer.cuh"
#include "kernels/cluster/producer.cuh"
#include "kernels/common/mla_cubin_emit.h"

#ifndef MLA_KERNEL_SYMBOL
#define MLA_KERNEL_SYMBOL mla_decode_cluster
#endif

namespace mla::cluster {

constexpr cubin::Facts kFacts = {
    .kind = kind::kDECODE,
    .requires_bits = requirement::kROW_TILES | requirement::kPARTIALS,
    .family = family::kCLUSTER,
    .q_dtype = dtype::kE4M3,
    .kv_dtype = dtype::kE4M3,
    .out_dtype = dtype::kBF16,
    .arithmetic = arithmetic::kQUANTISED,
    .mma = kBlockScaled ? mma_form::kBLOCK_SCALED : mma_form::kPLAIN,
    .cache_layout = cache_layout::kDENSE,
    .rows = kRows,
    .head_dim_k = kHeadDimK,
    .head_dim_v = kHeadDimV,
    .tile_tokens = kTileTokens,
    .page_size_multiple = 16,
    .page_size_max = 1 << 20,
    .features = feature::kLSE | feature::kPDL | feature::kSEPARATE_VALUES | feature::kSTRIDES |
                feature::kRAGGED_Q | feature::kNON_CAUSAL | feature::kCONTEXT_PARALLEL,
    .tensor_maps = 1,
    .box_tokens = kTileTokens,
    .k_box = kKBox,
    .k_swizzle = kKSwizzle,
    .v_box = kVBox,
    .v_swizzle = kVSwizzle,
    .threads = kThreads,
    .cluster_size = kClusterSize,
    .dynamic_smem = kDynamicSmem,
    .item_overhead = kItemOverhead,
    .min_share = kMinShare,
    .max_flat_merge = kMaxFlatMerge,
    .zeroed_bytes = Partials::kZeroedBytes,
    .fixed_bytes = 0,
    .bytes_per_worker = Partials::kBytesPerWorker,
    .max_workers = kMaxWorkers,
    .tile_cost = kTileCost,
    .params_struct = params_struct::kDECODE,
    .params_version = kDecodeParamsVersion,
    .params_bytes = sizeof(DecodeParams),
};
MLA_EMIT_DECODE_FACTS;

}  // namespace mla::cluster

extern "C" __global__ void __cluster_dims__(mla::cluster::kClusterSize, 1, 1)
    __launch_bounds__(mla::cluster::kThreads, 1)
        MLA_KERNEL_SYMBOL(const __grid_constant__ mla::DecodeParams params) {
  using namespace mla;
  using namespace mla::cluster;
  extern __shared__ __align__(1024) uint8_t smem_base[];
  ProducerSmem& producer = *reinterpret_cast<ProducerSmem*>(smem_base);
  ConsumerSmem& consumer = *reinterpret_cast<ConsumerSmem*>(smem_base);

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // Read again in every role: kept over all of them, it would not stay in a register.
  const auto lane = [] { return ptx::lane_id(); };
  const int rank = ptx::cluster_ctarank();
  const bool is_producer = rank < kProducers;

  if (warp == kLoaderWarp && lane() == 0) {
    ptx::prefetch_tensor_map(is_producer ? &params.k_map : &params.v_map);
    if (is_producer) {
      init_producer_barriers(producer);
    } else {
      init_consumer_barriers(consumer);
    }
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  // The barriers are ready in every CTA of the cluster.
  ptx::cluster_arrive();
  ptx::cluster_wait();
  // Everything below may read what the previous kernel of the stream wrote.
  ptx::griddepcontrol_wait();

  if (warp >= kMathWarps) {
    ptx::setmaxnreg_dec<kIoRegisters>();
    if (warp == kLoaderWarp) {
      if (is_producer) {
        load_keys(params, producer, rank, lane());
      } else {
        load_values(params, consumer, rank - kProducers, lane());
      }
    } else if (warp == kSchedulerWarp) {
      schedule(schedule_rule(), params, is_producer ? producer.queue : consumer.queue, ptx::clusterid_x(),
               ptx::nclusterid_x(), lane());
    }
  } else {
    ptx::setmaxnreg_inc<kMathRegisters>();
    if (is_producer) {
      ProducerWarp(params, producer, rank, warp, lane()).run();
    } else {
      ConsumerWarp(params, consumer, rank - kProducers, warp, lane()).run();
    }
  }

  ptx::griddepcontrol_launch_dependents();
  // No CTA leaves while another may still write to its shared memory.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

// SPDX-License-Identifier: Apache-2.0
//
// The loader warp: KV tiles by TMA, each CTA of a cluster half of them for both.
#pragma once

#include "kernels/common/pages.cuh"
#include "kernels/common/ptx/cluster.cuh"
#include "kernels/common/ptx/tma.cuh"
#include "kernels/hopper/config.cuh"

namespace mla::hopper {

__device__ __forceinline__ void load_box(uint32_t dst, const TensorMap* map, uint32_t bar, int x,
                                         const Chunk& chunk) {
  if constexpr (kClusterSize > 1) {
    ptx::tma_load_3d_multicast(dst, map, bar, x, chunk.row, chunk.page, (1u << kClusterSize) - 1);
  } else {
    ptx::tma_load_3d(dst, map, bar, x, chunk.row, chunk.page);
  }
}

// One warp: lane c loads chunk c of each part.
__device__ __forceinline__ void load_tiles(const DecodeParams& params, Smem& smem, int rank, int lane) {
  const int chunk_log2 = params.box_tokens_log2;
  const int chunks = kTileTokens >> chunk_log2;
  uint32_t bad_pages = 0;
  RingCursor<kStages> ring;
  for (ItemReader items(smem.queue, lane); items.next();) {
    const Item item = items.item();
    MLA_MARK(kItemTaken);
    if (beyond_table(params, item)) ++bad_pages;
    Chunk ahead{-1, 0, false};
    if (lane < chunks && item.tiles > 0)
      ahead = load_chunk(params, item, item.first_tile * kTileTokens, lane);
    for (int tile = item.first_tile; tile < item.last_tile; ++tile) {
      const Chunk chunk = ahead;
      // The page ids of the next tile are fetched while this tile waits for room.
      if (lane < chunks && tile + 1 < item.last_tile) {
        ahead = load_chunk(params, item, (tile + 1) * kTileTokens, lane);
      }
      const uint32_t bad = __ballot_sync(0xffffffff, lane < chunks && chunk.bad);
      bad_pages += __popc(bad);
      const uint32_t full = ptx::smem_addr(&smem.full[ring.stage]);
      if constexpr (kClusterSize > 1) {
        ptx::mbarrier_wait_cluster(ptx::smem_addr(&smem.empty[ring.stage]), ring.phase ^ 1);
      } else {
        ptx::mbarrier_wait(ptx::smem_addr(&smem.empty[ring.stage]), ring.phase ^ 1);
      }
      ptx::fence_proxy_async();
      if (lane == 0) {
        smem.bad_chunks[ring.stage] = bad;
        ptx::mbarrier_arrive_expect_tx(full, kTileBytes);
      }
      __syncwarp();
      if (lane < chunks) {
        const uint32_t base = ptx::smem_addr(&smem.kv[ring.stage]);
        const uint32_t row = lane << chunk_log2;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          if (panel % kClusterSize == rank) {
            load_box(base + panel * kPanelBytes + row * kPanel, &params.v_map, full, panel * kPanel, chunk);
          }
        }
        if (tile % kClusterSize == rank) {
          load_box(base + kPanels * kPanelBytes + row * kRope, &params.k_map, full, kHeadDimV, chunk);
        }
      }
      MLA_MARK(kTileAsked);
      __syncwarp();
      ring.advance();
    }
  }
  if (lane == 0 && rank == 0) count_bad(params, bad_pages);
}

}  // namespace mla::hopper

// SPDX-License-Identifier: Apache-2.0
//
// Producer CTAs: S = Q K^T and the online softmax of every other tile, P and what it says of its rows
// to both consumers.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cluster/config.cuh"
#include "kernels/common/pages.cuh"
#include "kernels/common/ptx/cluster.cuh"
#include "kernels/common/ptx/math.cuh"
#include "kernels/common/ptx/mma.cuh"
#include "kernels/common/ptx/tma.cuh"
#include "kernels/common/scale.cuh"

namespace mla::cluster {

// d = a * b + c
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    const float (&c)[4]) {
  if constexpr (kBlockScaled) {
    ptx::mma_e4m3_block_scaled(d, a, b0, b1, c);
  } else {
    ptx::mma_e4m3(d, a, b0, b1, c);
  }
}

__device__ __forceinline__ void init_producer_barriers(ProducerSmem& smem) {
  smem.queue.init_barriers();
  for (int i = 0; i < kKStages; ++i) {
    ptx::mbarrier_init(ptx::smem_addr(&smem.k_full[i]), 1);
    ptx::mbarrier_init(ptx::smem_addr(&smem.k_empty[i]), kMathWarps);
  }
  for (int w = 0; w < kMathWarps; ++w) {
    const uint32_t bar = ptx::smem_addr(&smem.ring_full[w]);
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_arrive_expect_tx(bar, kRingMessageBytes);  // always armed one message ahead
  }
  for (int i = 0; i < kSourceStages; ++i) {
    for (int g = 0; g < kRowGroups; ++g) {
      ptx::mbarrier_init(ptx::smem_addr(&smem.p_empty[i][g]), kConsumers * kColumnGroups);
    }
  }
}

// One warp: lane c loads chunk c of each box.
__device__ __forceinline__ void load_keys(const DecodeParams& params, ProducerSmem& smem, int rank,
                                          int lane) {
  const int chunks = kTileTokens >> params.box_tokens_log2;
  const uint32_t chunk_bytes = kKBox << params.box_tokens_log2;
  uint32_t bad_chunks = 0;
  RingCursor<kKStages> k;
  int sequence = 0;
  for (Items items(smem.queue, lane); items.next();) {
    const Item item = items.item();
    bad_chunks += beyond_table(params, item);
    // Tiles of this producer: those whose place in the cluster's whole sequence has its parity.
    int tile = item.first_tile + ((sequence ^ rank) & 1);
    sequence += item.last_tile - item.first_tile;
    Chunk ahead{-1, 0, false};
    if (tile < item.last_tile && lane < chunks) ahead = load_chunk(params, item, tile * kTileTokens, lane);
    for (; tile < item.last_tile; tile += kProducers) {
      const Chunk chunk = ahead;
      // The page id of the next tile is fetched while this tile waits for room.
      if (tile + kProducers < item.last_tile && lane < chunks) {
        ahead = load_chunk(params, item, (tile + kProducers) * kTileTokens, lane);
      }
      const uint32_t bad = __ballot_sync(0xffffffff, lane < chunks && chunk.bad);
      bad_chunks += __popc(bad);
      for (int box = 0; box < kKBoxes; ++box) {
        const uint32_t full = ptx::smem_addr(&smem.k_full[k.stage]);
        ptx::mbarrier_wait(ptx::smem_addr(&smem.k_empty[k.stage]), k.phase ^ 1);
        ptx::fence_proxy_async();
        if (lane == 0) {
          if (box == 0) smem.bad_chunks[k.stage] = bad;
          ptx::mbarrier_arrive_expect_tx(full, kKBoxBytes);
        }
        __syncwarp();
        if (lane < chunks) {
          ptx::tma_load_3d(ptx::smem_addr(smem.k[k.stage]) + lane * chunk_bytes, &params.k_map, full,
                           box * kKBox, chunk.row, chunk.page);
        }
        k.advance();
      }
    }
  }
  if (lane == 0) count_bad(params, bad_chunks);
}

// A math warp owns 16 rows of Q, all of them in registers, and computes their scores against the
// whole tile, so that a row never leaves its four lanes.
//
// The MMA sums over k in any order as long as A and B agree. Lane t of four takes the 16 bytes 16 t
// ... 16 t + 15 of each 64-byte box, of Q as of K: one 128-bit load then holds the B fragments of
// two k32 steps. The tensor core sums over a box, from zero; boxes are added here (the accumulators of
// the MMA on e4m3 keep fewer bits than a float on some boards).
struct ProducerWarp {
  using Reference = RowReference<float>;

  const DecodeParams& params;
  ProducerSmem& smem;
  const int rank;
  const int warp;
  const int lane;
  const int row;  // first of the two rows of this lane: row and row + 8
  const int quad;
  float scale_log2;  // scores in units of log2

  uint32_t q[kKBoxes][2][4];  // A fragments of two k32 steps a box
  float s[8][4];              // scores of the tile: n8 tile, fragment

  __device__ __forceinline__ ProducerWarp(const DecodeParams& p, ProducerSmem& sm, int r, int w, int l)
      : params(p),
        smem(sm),
        rank(r),
        warp(w),
        lane(l),
        row(w * kFragmentRows + l / 4),
        quad(l % 4),
        scale_log2(load_score_scale(p)) {}

  // `second` (0 or 1) is which of the lane's two rows, here and below.
  __device__ __forceinline__ void load_q(const Item& item) {
    const int rows = rows_of(schedule_rule(), params, item);
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int r = row + second * 8;
      const RowPlace place = place_of(params, item, r);
      const uint8_t* base = reinterpret_cast<const uint8_t*>(params.q) +
                            static_cast<int64_t>(item.first_query + place.token) * params.q_token_stride +
                            static_cast<int64_t>(place.head) * params.q_head_stride + quad * 16;
#pragma unroll
      for (int box = 0; box < kKBoxes; ++box) {
        uint4 v{0, 0, 0, 0};
        if (r < rows) v = *reinterpret_cast<const uint4*>(base + box * kKBox);
        q[box][0][second] = v.x;
        q[box][0][2 + second] = v.y;
        q[box][1][second] = v.z;
        q[box][1][2 + second] = v.w;
      }
    }
  }

  // Returns the bad chunks of the tile. A warp without rows only keeps step.
  __device__ __forceinline__ uint32_t scores(RingCursor<kKStages>& k, bool has_rows) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.f;
    }
    uint32_t bad = 0;
#pragma unroll
    for (int box = 0; box < kKBoxes; ++box) {
      ptx::mbarrier_wait(ptx::smem_addr(&smem.k_full[k.stage]), k.phase);
      if (box == 0) bad = smem.bad_chunks[k.stage];
      uint32_t loaded = bad;
      const uint4* b = reinterpret_cast<const uint4*>(smem.k[k.stage]) + lane;
      if (has_rows) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const uint4 v = b[n * 32];
          float part[4] = {0.f, 0.f, 0.f, 0.f};
          mma(part, q[box][0], v.x, v.y, part);
          mma(part, q[box][1], v.z, v.w, part);
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] += part[i];
          loaded |= v.w;
        }
      }
      __syncwarp();
      if (lane == 0) {
        ptx::mbarrier_arrive(ptx::after(ptx::smem_addr(&smem.k_empty[k.stage]), loaded, params.zero));
      }
      k.advance();
    }
    return bad;
  }

  // Scales the scores and gives hidden ones -inf. Scores are tile tokens 8 n + 2 quad + {0, 1}.
  __device__ __forceinline__ void scale_and_mask(const Item& item, int tile, uint32_t bad) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= scale_log2;
    }
    const int tile_begin = tile * kTileTokens;
    if (item.visible_first - tile_begin >= kTileTokens && bad == 0) return;
    int visible[2];  // tokens of the tile that each of the two rows sees
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const RowPlace place = place_of(params, item, row + second * 8);
      visible[second] = min(visible_to(params, item, place.token), item.visible) - tile_begin;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = n * 8 + quad * 2 + i % 2;
        if (token >= visible[i / 2] || ((bad >> (token >> params.box_tokens_log2)) & 1)) s[n][i] = -INFINITY;
      }
    }
  }

  // Maximum of one row's scores. NaN does not count.
  __device__ __forceinline__ float row_max(int second) const {
    float m = fmaxf(s[0][2 * second], s[0][2 * second + 1]);
#pragma unroll
    for (int n = 1; n < 8; ++n) m = fmaxf(m, fmaxf(s[n][2 * second], s[n][2 * second + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
    return fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
  }

  // Largest of one row's scores below `cut`.
  __device__ __forceinline__ float max_below(float cut, int second) const {
    float m = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 2 * second; i < 2 * second + 2; ++i) {
        if (s[n][i] < cut) m = fmaxf(m, s[n][i]);
      }
    }
    m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
    return fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
  }

  // Leaves one row's scores from `cut` on in `s`, and the others in `rest`. NaN stays.
  __device__ __forceinline__ void split_scores(float cut, int second, float (&rest)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 2 * second; i < 2 * second + 2; ++i) {
        const bool later = s[n][i] < cut;
        rest[n][i] = later ? s[n][i] : -INFINITY;
        if (later) s[n][i] = -INFINITY;
      }
    }
  }

  // P of one row as the A fragments of the consumers: word w holds tokens 16 w + 2 quad + {0, 1} and
  // 16 w + 8 + 2 quad + {0, 1}. Returns the row's sum of the quantised values (it
  // normalises the output, so that the scale and part of the rounding cancel) and of the exact ones
  // (for lse).
  __device__ __forceinline__ float2 quantise(int second, float reference, uint32_t (&words)[4]) const {
    const float shift = kLog2PMax - (reference == -INFINITY ? 0.f : reference);
    float2 sum{0.f, 0.f};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint16_t pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* x = &s[2 * w + i][2 * second];
        const float e0 = ptx::ex2(x[0] + shift), e1 = ptx::ex2(x[1] + shift);
        pair[i] = ptx::cvt_e4m3x2(e0, e1);
        const uint32_t quantised = ptx::cvt_f16x2_from_e4m3x2(pair[i]);
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&quantised));
        sum.x += f.x + f.y;
        sum.y += e0 + e1;
      }
      words[w] = pair[0] | (static_cast<uint32_t>(pair[1]) << 16);
    }
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
      sum.x += __shfl_xor_sync(0xffffffff, sum.x, d);
      sum.y += __shfl_xor_sync(0xffffffff, sum.y, d);
    }
    return sum;
  }

  __device__ __forceinline__ void run() {
    const uint32_t ring_full = ptx::smem_addr(&smem.ring_full[warp]);
    const uint32_t other_ring_full = ptx::mapa(ring_full, rank ^ 1);
    const uint32_t other_ring_reference = ptx::mapa(ptx::smem_addr(&smem.ring_reference[row]), rank ^ 1);
    RingCursor<kKStages> k;
    RingCursor<kSourceStages> p;
    uint32_t ring_phase = 0;
    int sequence = 0;
    for (Items items(smem.queue, lane); items.next();) {
      const int first_tile = items.item().first_tile;
      int tile = first_tile + ((sequence ^ rank) & 1);
      const int next_sequence = sequence + items.item().last_tile - first_tile;
      sequence += tile - first_tile;
      if (tile < items.item().last_tile) load_q(items.item());
      for (; tile < items.item().last_tile; tile += kProducers, sequence += kProducers) {
        const uint32_t bad = scores(k, warp * kFragmentRows < rows_of(schedule_rule(), params, items.item()));
        scale_and_mask(items.item(), tile, bad);
        const float most[2] = {row_max(0), row_max(1)};
        // The reference goes round the two producers, one message a tile. Strictly in turn, also from
        // one item to the next, so that one mailbox a warp is enough: the other producer writes the
        // next message only after it has ours, and we send ours after reading.
        Reference before[2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
        if (sequence > 0) {
          ptx::mbarrier_wait_cluster(ring_full, ring_phase);
          ring_phase ^= 1;
          if (lane == 0) ptx::mbarrier_arrive_expect_tx(ring_full, kRingMessageBytes);
          if (tile != first_tile) {
            before[0] = smem.ring_reference[row];
            before[1] = smem.ring_reference[row + 8];
          }
          __syncwarp();
        }
        Reference now[2], last[2];  // of the tile's first part, and of its second if it has one
        float cut[2];
        bool candidate = false;  // has tokens below the cut that could matter
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          now[second] = last[second] = next_reference(before[second], most[second]);
          cut[second] = most[second] - kFirstPart;
          candidate |= needs_second_part(before[second], cut[second]);
        }
        bool more = false;
        if (__any_sync(0xffffffff, candidate)) {
#pragma unroll
          for (int second = 0; second < 2; ++second) {
            const float rest = max_below(cut[second], second);
            const bool needed = needs_second_part(before[second], rest);
            more |= needed;
            if (needed) last[second] = next_reference(now[second], rest);
            if (!needed) cut[second] = -INFINITY;
          }
        }
        if (quad == 0) {
          ptx::st_async(other_ring_reference, other_ring_full, float2{last[0].value, last[0].most});
          ptx::st_async(other_ring_reference + 8 * sizeof(Reference), other_ring_full,
                        float2{last[1].value, last[1].most});
        }

        // The warps of a row group send one message together.
        more = ptx::named_barrier_or(kRowGroupBarrier + warp / kSourceWarps, kSourceWarps * 32, more);
        float rest[8][4];
        if (more) {
          split_scores(cut[0], 0, rest);
          split_scores(cut[1], 1, rest);
        }
        float from[2] = {before[0].value, before[1].value};
        float to[2] = {now[0].value, now[1].value};
        for (;; more = false) {
          uint32_t words[2][4];
          uint4 rows[2];
#pragma unroll
          for (int second = 0; second < 2; ++second) {
            const float factor = from[second] == to[second] ? 1.f : ptx::ex2(from[second] - to[second]);
            const float2 sum = quantise(second, to[second], words[second]);
            rows[second] = uint4{__float_as_uint(factor) | (more ? 0x80000000u : 0u), __float_as_uint(sum.x),
                                 __float_as_uint(sum.y), __float_as_uint(to[second])};
          }
          ptx::mbarrier_wait_cluster(ptx::smem_addr(&smem.p_empty[p.stage][warp / kSourceWarps]),
                                     p.phase ^ 1);
          send(kProducers * p.stage + rank, words, rows);
          p.advance();
          if (!more) break;
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[n][i] = rest[n][i];
          }
#pragma unroll
          for (int second = 0; second < 2; ++second) {
            from[second] = to[second];
            to[second] = last[second].value;
          }
        }
      }
      sequence = next_sequence;
    }
    // The last message of the other producer answers no tile of ours: see it arrive before leaving.
    if (sequence > 0 && (sequence & 1) == rank) ptx::mbarrier_wait_cluster(ring_full, ring_phase);
  }

  // `rows` are TileRows.
  __device__ __forceinline__ void send(int stage, const uint32_t (&words)[2][4], const uint4 (&rows)[2]) {
    // The consumer's struct lies at the same place of its shared memory as ours does.
    const ConsumerSmem& layout = reinterpret_cast<const ConsumerSmem&>(smem);
    const uint32_t fragment = ptx::smem_addr(&layout.p[stage].fragments[warp][0][lane]);
    const uint32_t tile_row = ptx::smem_addr(&layout.p[stage].rows[row]);
    const uint32_t full = ptx::smem_addr(&layout.p_full[stage][warp / kSourceWarps]);
#pragma unroll
    for (int c = 0; c < kConsumers; ++c) {
      const uint32_t bar = ptx::mapa(full, kProducers + c);
      const uint32_t dst = ptx::mapa(fragment, kProducers + c);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        ptx::st_async(
            dst + step * 32 * sizeof(uint4), bar,
            uint4{words[0][2 * step], words[1][2 * step], words[0][2 * step + 1], words[1][2 * step + 1]});
      }
      if (quad == 0) {
        const uint32_t r = ptx::mapa(tile_row, kProducers + c);
        ptx::st_async(r, bar, rows[0]);
        ptx::st_async(r + 8 * sizeof(TileRow), bar, rows[1]);
      }
    }
  }
};

}  // namespace mla::cluster

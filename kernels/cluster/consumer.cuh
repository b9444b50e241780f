// SPDX-License-Identifier: Apache-2.0
//
// Consumer CTAs: O += P V for a part of the value columns, then the result or, for a split item, a
// partial result and the merge.
#pragma once

#include "kernels/cluster/config.cuh"
#include "kernels/cluster/producer.cuh"
#include "kernels/common/pages.cuh"
#include "kernels/common/ptx/cluster.cuh"
#include "kernels/common/ptx/math.cuh"
#include "kernels/common/ptx/mma.cuh"
#include "kernels/common/ptx/tma.cuh"

namespace mla::cluster {

__device__ __forceinline__ void init_consumer_barriers(ConsumerSmem& smem) {
  smem.queue.init_barriers();
  for (int i = 0; i < kVStages; ++i) {
    ptx::mbarrier_init(ptx::smem_addr(&smem.v_full[i]), 1);
    ptx::mbarrier_init(ptx::smem_addr(&smem.v_empty[i]), kMathWarps / kVBoxes);
  }
  for (int i = 0; i < kPStages; ++i) {
    for (int g = 0; g < kRowGroups; ++g) {
      const uint32_t bar = ptx::smem_addr(&smem.p_full[i][g]);
      ptx::mbarrier_init(bar, 1);
      ptx::mbarrier_arrive_expect_tx(bar, kGroupMessageBytes);  // always armed one message ahead
    }
  }
}

// One warp: lane c loads chunk c of each box.
__device__ __forceinline__ void load_values(const DecodeParams& params, ConsumerSmem& smem, int value_part,
                                            int lane) {
  const int chunks = kTileTokens >> params.box_tokens_log2;
  const uint32_t chunk_bytes = kVBox << params.box_tokens_log2;
  RingCursor<kVStages> v;
  for (Items items(smem.queue, lane); items.next();) {
    const Item item = items.item();
    Chunk ahead{-1, 0, false};
    if (item.first_tile < item.last_tile && lane < chunks) {
      ahead = load_chunk(params, item, item.first_tile * kTileTokens, lane);
    }
    for (int tile = item.first_tile; tile < item.last_tile; ++tile) {
      const Chunk chunk = ahead;
      if (tile + 1 < item.last_tile && lane < chunks) {
        ahead = load_chunk(params, item, (tile + 1) * kTileTokens, lane);
      }
      for (int box = 0; box < kVBoxes; ++box) {
        const uint32_t full = ptx::smem_addr(&smem.v_full[v.stage]);
        ptx::mbarrier_wait(ptx::smem_addr(&smem.v_empty[v.stage]), v.phase ^ 1);
        ptx::fence_proxy_async();
        if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, kVBoxBytes);
        __syncwarp();
        if (lane < chunks) {
          ptx::tma_load_3d(ptx::smem_addr(smem.v[v.stage]) + lane * chunk_bytes, &params.v_map, full,
                           value_part * kVColumns + box * kVBox, chunk.row, chunk.page);
        }
        v.advance();
      }
    }
  }
}

// A math warp owns 32 rows by 128 columns of the output.
//
// The MMA wants four consecutive k (tokens) of a column in a register, but a token's columns are
// consecutive in memory. A transposed 16-bit ldmatrix gives (2 tokens) x (2 columns); two byte
// permutes of a pair of such registers give the B fragments of the even and of the odd columns. The
// tokens then stand in the order 16 w + 2 quad + {0, 1}, + 8: just the order in which a producer
// lane holds its scores, so neither side shuffles.
//
// The tensor core multiplies one tile at a time, from zero; sums over tiles are float additions here
// (the accumulators of the MMA on e4m3 keep fewer bits than a float on some boards).
struct ConsumerWarp {
  const DecodeParams& params;
  ConsumerSmem& smem;
  const int value_part;  // which part of the value columns
  const int warp;
  const int lane;
  const int quad;
  const int row_group;
  const int column_group;

  float acc[kGroupFragments][kColumnBlocks][2][4];  // A fragment, 16-column block, even/odd columns

  __device__ __forceinline__ ConsumerWarp(const DecodeParams& p, ConsumerSmem& sm, int part, int w, int l)
      : params(p),
        smem(sm),
        value_part(part),
        warp(w),
        lane(l),
        // Opaque: nvcc 13.0.88 for compute_120f takes `quad == 0` in for_own_rows for leave to drop the
        // low bits' mask from lane / 4 outside it, too, and reads the wrong rows (found by the emulator).
        quad(ptx::opaque(l % 4)),
        row_group(w % kRowGroups),
        column_group(w / kRowGroups) {}

  // `second` (0 or 1) is which of the lane's two rows of a fragment, here and below.
  __device__ __forceinline__ int row_of(int fragment, int second) const {
    return row_group * kGroupRows + fragment * kFragmentRows + second * 8 + lane / 4;
  }

  // Reference and sums of a row stand in shared memory, kept by one lane of its four in one of its
  // warps: registers are short, and only the end of an item needs them. `body(fragment, second)` runs
  // for the rows that this lane keeps.
  template <class Body>
  __device__ __forceinline__ void for_own_rows(Body body) const {
    if (column_group != 0 || quad != 0) return;
#pragma unroll
    for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second) body(m, second);
    }
  }

  __device__ __forceinline__ void clear_rows() const {
    for_own_rows([&](int m, int second) { smem.rows[row_of(m, second)] = RowTotal{-INFINITY, 0.f, 0.f}; });
  }

  __device__ __forceinline__ int thread() const { return warp * 32 + lane; }
  __device__ __forceinline__ void sync() const { ptx::named_barrier(kMathBarrier, kMathThreads); }

  // The warps that read the same columns of V.
  __device__ __forceinline__ void sync_values() const {
    ptx::named_barrier(kValueBarrier + column_group, kRowGroups * 32);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[m][c][i / 4][i % 4] = 0.f;
      }
    }
  }

  // Adds the sums of a tile. Returns a value that depends on all that was loaded (ptx::after).
  __device__ __forceinline__ uint32_t add_rows(const ConsumerSmem::PStage& p) const {
    uint32_t loaded = 0;
    for_own_rows([&](int m, int second) {
      const int row = row_of(m, second);
      const TileRow tile = p.rows[row];
      const RowTotal old = smem.rows[row];
      const float factor = fabsf(tile.factor);
      smem.rows[row] = RowTotal{tile.reference, old.quantised_sum * factor + tile.quantised_sum,
                                old.exact_sum * factor + tile.exact_sum};
      loaded |= __float_as_uint(tile.reference) | __float_as_uint(tile.quantised_sum) |
                __float_as_uint(tile.exact_sum);
    });
    return loaded;
  }

  // Address of 16 bytes of a token in the V box. They are swizzled by the token's low three bits, so
  // the box's column block c is at this address ^ 16 c.
  __device__ __forceinline__ static uint32_t value_address(uint32_t v, int token) {
    return v + token * kVBox + ((token & 7) << 4);
  }
  static_assert(kColumnBlocks * 16 == kVBox && kVBox == 128, "a column block is three bits of the address");

  // The first token in [begin, end) of which this warp's columns hold a NaN; `end` if there is none.
  __device__ __forceinline__ int first_nan(uint32_t v, int begin, int end) const {
    for (int token = begin; token < end; ++token) {
      const uint32_t word = ptx::ld_shared(v + token * kVBox + lane * 4);
      // 0x7f and 0xff are the NaN of e4m3.
      if (__any_sync(0xffffffff, (((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080) != 0)) return token;
    }
    return end;
  }

  // Tokens that the last row of the row tile sees and the first does not. A row that does not see a
  // token has P 0 for it, but 0 times a NaN of its value would be NaN. Where there is such a NaN,
  // this cuts the tile before it (P of the rows that see so much does not matter any more) and makes
  // NaN of the rows that see it. Returns the tokens to multiply.
  __device__ __forceinline__ int poison_rows(const Item& item, int tile_begin, uint32_t v) {
    const int end = min(item.visible - tile_begin, kTileTokens);
    const int begin = max(item.visible_first - tile_begin, 0);
    if (begin >= end) return end;
    const int clean = first_nan(v, begin, end);
    sync_values();  // all have looked, before one clears what follows (clear_hidden)
    if (clean < end) {
      const RowPlace place = place_of(params, item, row_group * kGroupRows + lane);
      const bool sees = visible_to(params, item, place.token) - tile_begin > clean;
      const uint32_t poisoned = __ballot_sync(0xffffffff, sees);
#pragma unroll
      for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          if (!(poisoned >> (m * kFragmentRows + second * 8 + lane / 4) & 1)) continue;
#pragma unroll
          for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][c][i / 2][2 * second + i % 2] = __int_as_float(0x7fffffff);
          }
        }
      }
    }
    return clean;
  }

  // Makes the values of the tile's tokens from `begin` on 0, for the warps that read these columns.
  // P is 0 for hidden tokens, but 0 times a NaN of the last page's tail would not be.
  __device__ __forceinline__ void clear_hidden(uint32_t v, int begin) const {
    if (row_group == 0) {
      for (int token = begin + lane / kColumnBlocks; token < kTileTokens; token += 32 / kColumnBlocks) {
        ptx::st_shared(value_address(v, token) ^ (lane % kColumnBlocks * 16), uint4{0, 0, 0, 0});
      }
    }
    sync_values();
  }

  // A tile's P: A fragments and factors of this warp's rows.
  struct Weights {
    uint32_t a[kGroupFragments][2][4];  // of two k32 steps
    float factor[kGroupFragments][2];
    bool more;  // a second message follows for the tile
  };

  // Returns a value that depends on all that was loaded.
  __device__ __forceinline__ uint32_t load_p(const ConsumerSmem::PStage& p, Weights& weights) const {
    uint32_t loaded = 0;
#pragma unroll
    for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 f = p.fragments[row_group * kGroupFragments + m][i][lane];
        weights.a[m][i][0] = f.x;
        weights.a[m][i][1] = f.y;
        weights.a[m][i][2] = f.z;
        weights.a[m][i][3] = f.w;
        const uint32_t factor = __float_as_uint(p.rows[row_of(m, i)].factor);
        weights.more = static_cast<int32_t>(factor) < 0;
        weights.factor[m][i] = __uint_as_float(factor & 0x7fffffff);
        loaded |= f.w | factor;
      }
    }
    weights.more = __any_sync(0xffffffff, weights.more);
    return loaded;
  }

  // acc = acc * factor + P V. Returns a value that depends on all that was loaded.
  __device__ __forceinline__ uint32_t multiply(const Weights& p, uint32_t v) {
    uint32_t loaded = 0;
    uint32_t r[2][4];
    const auto load_block = [&](uint32_t address) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        ptx::ldmatrix_x4_trans(r[step], address + step * 32 * kVBox);
        loaded |= r[step][3];
      }
    };
    const uint32_t address = value_address(v, lane);  // lane l gives that of token l of a step's 32
    load_block(address);
#pragma unroll
    for (int c = 0; c < kColumnBlocks; ++c) {
      uint32_t b[2][2][2];  // even/odd columns, k32 step, half of it
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t pick = odd ? 0x7531 : 0x6420;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          b[odd][step][0] = __byte_perm(r[step][0], r[step][1], pick);
          b[odd][step][1] = __byte_perm(r[step][2], r[step][3], pick);
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kGroupFragments; ++i) {
        const int m = i % kGroupFragments, odd = i / kGroupFragments;
        float tile[4] = {0.f, 0.f, 0.f, 0.f};
        mma(tile, p.a[m][0], b[odd][0][0], b[odd][0][1], tile);
        mma(tile, p.a[m][1], b[odd][1][0], b[odd][1][1], tile);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          acc[m][c][odd][e] = __fmaf_rn(acc[m][c][odd][e], p.factor[m][e / 2], tile[e]);
        }
        // Not earlier: ptxas would load all blocks at once, and registers are short.
        if (i == 1 && c + 1 < kColumnBlocks) {
          load_block(ptx::after(address ^ ((c + 1) * 16), __float_as_uint(acc[m][c][odd][0]), params.zero));
        }
      }
    }
    return loaded;
  }

  __device__ __forceinline__ void run() {
    const ProducerSmem& producer = reinterpret_cast<const ProducerSmem&>(smem);
    // Tiles of this cluster so far, which gives the place in the ring of V, and P messages of each
    // producer.
    uint32_t sequence = 0;
    uint32_t messages[kProducers] = {};
    for (Items items(smem.queue, lane); items.next();) {
      clear();
      clear_rows();
      for (int tile = items.item().first_tile; tile < items.item().last_tile; ++tile) {
        const uint32_t v_box = sequence * kVBoxes + column_group;
        const uint32_t v_stage = v_box % kVStages;
        const uint32_t v = ptx::smem_addr(smem.v[v_stage]);
        ptx::mbarrier_wait(ptx::smem_addr(&smem.v_full[v_stage]), v_box / kVStages & 1);
        const int tokens = poison_rows(items.item(), tile * kTileTokens, v);
        if (tokens < kTileTokens) clear_hidden(v, tokens);

        const uint32_t source = sequence % kProducers;
        uint32_t loaded_v = 0;
        for (bool more = true; more;) {
          const uint32_t message = source == 0 ? messages[0]++ : messages[1]++;
          const uint32_t source_stage = message % kSourceStages;
          const uint32_t p_stage = source_stage * kProducers + source;
          const uint32_t p_full = ptx::smem_addr(&smem.p_full[p_stage][row_group]);
          ptx::mbarrier_wait_cluster(p_full, message / kSourceStages & 1);
          if (column_group == 0 && lane == 0) ptx::mbarrier_arrive_expect_tx(p_full, kGroupMessageBytes);
          const uint32_t loaded_rows = add_rows(smem.p[p_stage]);
          Weights weights;
          const uint32_t loaded_p = load_p(smem.p[p_stage], weights) | loaded_rows;
          __syncwarp();
          if (lane == 0) {
            const uint32_t p_empty = ptx::smem_addr(&producer.p_empty[source_stage][row_group]);
            ptx::mbarrier_arrive_remote(ptx::after(ptx::mapa(p_empty, source), loaded_p, params.zero));
          }
          more = weights.more;
          loaded_v |= multiply(weights, v);
        }
        __syncwarp();
        if (lane == 0) {
          ptx::mbarrier_arrive(ptx::after(ptx::smem_addr(&smem.v_empty[v_stage]), loaded_v, params.zero));
        }
        ++sequence;
      }
      if (items.item().whole() ||
          merge_item<Partials>(schedule_rule(), params, *this, smem.splits, smem.queue.line, items.item(),
                               ptx::clusterid_x(), value_part)) {
        sync();  // the sums are complete
        write_output(items.item());
        sync();  // and read, before the next item starts them anew
      }
    }
  }

  __device__ __forceinline__ void write_output(const Item& item) const {
    const float kv_scale = load_kv_scale(params);
    const int rows = rows_of(schedule_rule(), params, item) - row_group * kGroupRows;
    // Where a row lies: a lane works it out for one row and the others ask it. Divisions are long.
    const RowPlace place = place_of(params, item, row_group * kGroupRows + lane);
    const int64_t query = item.first_query + place.token;
    const int64_t out_offset = query * params.out_token_stride + place.head * params.out_head_stride;
    const int64_t lse_offset = query * params.lse_token_stride + place.head * params.lse_head_stride;
    const int column = value_part * kVColumns + column_group * kGroupColumns + quad * 4;
#pragma unroll
    for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int row = m * kFragmentRows + second * 8 + lane / 4;  // of the group
        const int64_t offset = __shfl_sync(0xffffffff, out_offset, row);
        const int64_t lse_at = __shfl_sync(0xffffffff, lse_offset, row);
        if (row >= rows) continue;
        const RowTotal total = smem.rows[row_of(m, second)];
        // Not the reference tells a row that saw no token: it ignores NaN.
        const bool empty = total.exact_sum == 0.f;
        const float scale = empty ? 0.f : __fdividef(1.f, total.quantised_sum);
        const float value_scale = empty ? 0.f : kv_scale;  // which may be NaN
        if (params.lse != 0 && value_part == 0 && column_group == 0 && quad == 0) {
          constexpr float kLn2 = 0.6931471805599453f;
          reinterpret_cast<float*>(params.lse)[lse_at] =
              empty ? -INFINITY : kLn2 * (total.reference - kLog2PMax + ptx::lg2(total.exact_sum));
        }
        uint8_t* dst = reinterpret_cast<uint8_t*>(params.out) + offset + column * sizeof(uint16_t);
#pragma unroll
        for (int c = 0; c < kColumnBlocks; ++c) {
          const auto value = [&](int odd, int i) {
            return acc[m][c][odd][2 * second + i] * scale * value_scale;
          };
          const uint2 v{ptx::cvt_bf16x2(value(0, 0), value(1, 0)), ptx::cvt_bf16x2(value(0, 1), value(1, 1))};
          *reinterpret_cast<uint2*>(dst + c * 16 * sizeof(uint16_t)) = v;
        }
      }
    }
  }

  // ---- split items (merge.cuh) -------------------------------------------------------------------

  __device__ __forceinline__ static int word_of(int m, int c, int odd) {
    return ((m * kColumnBlocks + c) * 2 + odd) * kMathThreads;
  }

  __device__ __forceinline__ void store_partial(int slot) const {
    float4* dst = Partials::acc(params, slot, value_part) + thread();
#pragma unroll
    for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const auto& f = acc[m][c][odd];
          dst[word_of(m, c, odd)] = float4{f[0], f[1], f[2], f[3]};
        }
      }
    }
    float4* state = Partials::row_state(params, slot, value_part);
    for_own_rows([&](int m, int second) {
      const RowTotal total = smem.rows[row_of(m, second)];
      state[row_of(m, second)] = float4{total.reference, total.quantised_sum, total.exact_sum, 0.f};
    });
  }

  // Weight of a partial result whose reference is `reference` in a sum of reference `most`. The sums
  // of one that saw nothing are 0, or NaN.
  __device__ __forceinline__ static float weight_of(float reference, float most) {
    return reference == -INFINITY ? 0.f : ptx::ex2(reference - most);
  }

  template <class Slots>
  __device__ __forceinline__ void load_merged(const Slots& slots) {
    clear();
    float most[kGroupFragments][2];
#pragma unroll
    for (int m = 0; m < kGroupFragments; ++m) most[m][0] = most[m][1] = -INFINITY;
    for (int i = 0; i < slots.count; ++i) {
      const float4* state = Partials::row_state(params, slots[i], value_part);
#pragma unroll
      for (int m = 0; m < kGroupFragments; ++m) {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          most[m][second] = fmaxf(most[m][second], __ldcg(&state[row_of(m, second)].x));
        }
      }
    }
    for_own_rows([&](int m, int second) {
      smem.rows[row_of(m, second)] = RowTotal{most[m][second], 0.f, 0.f};
    });
    for (int i = 0; i < slots.count; ++i) {
      const int slot = slots[i];
      const float4* state = Partials::row_state(params, slot, value_part);
      const float4* src = Partials::acc(params, slot, value_part) + thread();
#pragma unroll
      for (int m = 0; m < kGroupFragments; ++m) {
        float weight[2];
#pragma unroll
        for (int second = 0; second < 2; ++second) {
          weight[second] = weight_of(__ldcg(&state[row_of(m, second)].x), most[m][second]);
        }
#pragma unroll
        for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const float4 f = __ldcg(&src[word_of(m, c, odd)]);
            auto& a = acc[m][c][odd];
            a[0] += f.x * weight[0];
            a[1] += f.y * weight[0];
            a[2] += f.z * weight[1];
            a[3] += f.w * weight[1];
          }
        }
      }
      for_own_rows([&](int m, int second) {
        const float4 v = __ldcg(&state[row_of(m, second)]);
        const float weight = weight_of(v.x, most[m][second]);
        RowTotal& total = smem.rows[row_of(m, second)];
        total.quantised_sum += v.y * weight;
        total.exact_sum += v.z * weight;
      });
    }
  }
};

}  // namespace mla::cluster

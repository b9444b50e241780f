// SPDX-License-Identifier: Apache-2.0
//
// Consumer CTAs: O += P V for half of the value columns, then the result or, for a split item, a
// partial result and the merge.
#pragma once

#include "kernels/cluster/config.cuh"
#include "kernels/cluster/producer.cuh"
#include "kernels/cluster/work.cuh"
#include "kernels/common/ptx.cuh"

namespace mla::cluster {

__device__ __forceinline__ void init_consumer_barriers(ConsumerSmem& smem) {
  init_queue_barriers(smem.queue);
  for (int i = 0; i < kVStages; ++i) {
    ptx::mbarrier_init(ptx::smem_addr(&smem.v_full[i]), 1);
    ptx::mbarrier_init(ptx::smem_addr(&smem.v_empty[i]), kMathWarps / kVParts);
  }
  for (int i = 0; i < kPStages; ++i) {
    const uint32_t bar = ptx::smem_addr(&smem.p_full[i]);
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_arrive_expect_tx(bar, kPMessageBytes);  // always armed one message ahead
  }
}

// One warp: lane c loads chunk c of each part.
__device__ __forceinline__ void load_values(const DecodeParams& params, ConsumerSmem& smem, int half,
                                            int lane) {
  const int chunk_log2 = chunk_tokens_log2(params);
  const int chunks = kTileTokens >> chunk_log2;
  const uint32_t chunk_bytes = kVPart << chunk_log2;
  RingCursor<kVStages> v;
  for (ItemReader items(smem.queue, lane); items.next();) {
    const Item item = items.item();
    Chunk ahead{-1, 0, false};
    if (lane < chunks) ahead = load_chunk(params, item, item.first_tile, lane);
    for (int tile = item.first_tile; tile < item.last_tile; ++tile) {
      const Chunk chunk = ahead;
      if (tile + 1 < item.last_tile && lane < chunks) ahead = load_chunk(params, item, tile + 1, lane);
      for (int part = 0; part < kVParts; ++part) {
        const uint32_t full = ptx::smem_addr(&smem.v_full[v.stage]);
        ptx::mbarrier_wait(ptx::smem_addr(&smem.v_empty[v.stage]), v.phase ^ 1);
        ptx::fence_proxy_async();
        if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, kVPartBytes);
        __syncwarp();
        if (lane < chunks) {
          ptx::tma_load_3d(ptx::smem_addr(smem.v[v.stage]) + lane * chunk_bytes, &params.v_map, full,
                           half * kVColumns + part * kVPart, chunk.row, chunk.page);
        }
        v.advance();
      }
    }
  }
}

// The workspace of a launch; see mla_params.h.
struct Workspace {
  uint32_t* counters;
  float4* row_state;
  float4* acc;
  int workers;

  __device__ __forceinline__ explicit Workspace(const DecodeParams& params) {
    workers = ptx::nclusterid_x();
    uint8_t* base = reinterpret_cast<uint8_t*>(params.workspace);
    counters = reinterpret_cast<uint32_t*>(base);
    base += workspace_counter_bytes(workers);
    row_state = reinterpret_cast<float4*>(base);
    base += workspace_row_state_bytes(kRows, workers);
    acc = reinterpret_cast<float4*>(base);
  }

  __device__ __forceinline__ uint32_t* counter(int kind, int slot, int half) const {
    return counters + (kind * 2 * workers + slot) * kValueHalves + half;
  }
  __device__ __forceinline__ float4* row_state_of(int slot, int half) const {
    return row_state + static_cast<int64_t>(slot * kValueHalves + half) * kRows;
  }
  // One float4 a thread and fragment, in the order of the math threads.
  __device__ __forceinline__ float4* acc_of(int slot, int half) const {
    return acc + static_cast<int64_t>(slot * kValueHalves + half) * (kRows * kVColumns / 4);
  }
};

// A math warp owns 64 rows by 64 columns of the output.
//
// The MMA wants four consecutive k (tokens) of a column in a register, but a token's columns are
// consecutive in memory. A transposed 16-bit ldmatrix gives (2 tokens) x (2 columns); two byte
// permutes of a pair of such registers give the B fragments of the even and of the odd columns. The
// tokens then stand in the order 16 h + 2 quad + {0, 1}, + 8: just the order in which a producer
// lane holds its scores, so neither side shuffles.
struct ConsumerWarp {
  static constexpr int kFragments = kRowTiles * kColumnBlocks * 2;

  const DecodeParams& params;
  ConsumerSmem& smem;
  const int half;  // which half of the value columns
  const int warp;
  const int lane;
  const int quad;
  const int row_group;
  const int column_group;

  float acc[kRowTiles][kColumnBlocks][2][4];  // m16 tile, 16-column block, even/odd columns

  __device__ __forceinline__ ConsumerWarp(const DecodeParams& p, ConsumerSmem& sm, int h, int w, int l)
      : params(p),
        smem(sm),
        half(h),
        warp(w),
        lane(l),
        // Opaque: nvcc 13.0.88 for compute_120f takes `quad == 0` in for_own_rows for leave to drop the
        // low bits' mask from lane / 4 outside it, too, and reads the wrong rows (found by the emulator).
        quad(ptx::opaque(l % 4)),
        row_group(w % kRowGroups),
        column_group(w / kRowGroups) {}

  __device__ __forceinline__ int row_of(int m, int h) const {
    return (row_group * kRowTiles + m) * 16 + h * 8 + lane / 4;
  }

  // Maximum and sums of a row stand in shared memory, kept by one lane of its four in one of its
  // warps: registers are short, and only the end of an item needs them. `body(m, h)` runs for the
  // rows that this lane keeps.
  template <class Body>
  __device__ __forceinline__ void for_own_rows(Body body) const {
    if (column_group != 0 || quad != 0) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) body(m, h);
    }
  }

  __device__ __forceinline__ void clear_rows() const {
    for_own_rows([&](int m, int h) { smem.rows[row_of(m, h)] = RowTotal{-INFINITY, 0.f, 0.f}; });
  }

  __device__ __forceinline__ void sync() const { ptx::named_barrier(1, kMathThreads); }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[m][c][i / 4][i % 4] = 0.f;
      }
    }
  }

  // Brings accumulators and sums to the running maximum of the tile. Returns a value that depends on
  // all that was loaded (ptx::after).
  __device__ __forceinline__ uint32_t rescale(const ConsumerSmem::PStage& p) {
    float factor[kRowTiles][2];
    bool changed = false;
    uint32_t loaded = 0;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factor[m][h] = p.rows[row_of(m, h)].factor;
        changed |= factor[m][h] != 1.f;
        loaded |= __float_as_uint(factor[m][h]);
      }
    }
    for_own_rows([&](int m, int h) {
      const int row = row_of(m, h);
      const TileRow tile = p.rows[row];
      const RowTotal old = smem.rows[row];
      smem.rows[row] = RowTotal{tile.max, old.quantised_sum * tile.factor + tile.quantised_sum,
                                old.exact_sum * tile.factor + tile.exact_sum};
      loaded |= __float_as_uint(tile.max);
    });
    if (!__any_sync(0xffffffff, changed)) return loaded;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[m][c][i / 4][i % 4] *= factor[m][(i % 4) / 2];
      }
    }
    return loaded;
  }

  // Bytes of a B fragment word (tokens base + {0, 1, 8, 9}) that are visible. P is 0 for hidden
  // tokens, but 0 times a NaN of the last page's tail would not be.
  __device__ __forceinline__ uint32_t visible_bytes(int base, int visible_in_tile) const {
    uint32_t mask = 0;
    if (base < visible_in_tile) mask |= 0x000000ffu;
    if (base + 1 < visible_in_tile) mask |= 0x0000ff00u;
    if (base + 8 < visible_in_tile) mask |= 0x00ff0000u;
    if (base + 9 < visible_in_tile) mask |= 0xff000000u;
    return mask;
  }

  // Returns values that depend on all that was loaded of P (x) and V (y).
  __device__ __forceinline__ uint2 multiply(const ConsumerSmem::PStage& p, uint32_t v, int visible_in_tile) {
    uint2 loaded{0, 0};
    // Lane l gives ldmatrix the address of token l of each half tile; 16-byte columns are swizzled
    // by the token's low three bits.
    const uint32_t column = column_group % 2 * (kColumnBlocks * 16);
    const uint32_t token_row = v + lane * kVPart;
    const uint32_t swizzle = (lane & 7) << 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t mask[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) mask[h] = visible_bytes(step * 32 + h * 16 + quad * 2, visible_in_tile);
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const uint4 f = p.fragments[row_group * kRowTiles + m][step][lane];
        a[m][0] = f.x;
        a[m][1] = f.y;
        a[m][2] = f.z;
        a[m][3] = f.w;
        loaded.x |= f.w;
      }
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
        uint32_t r[4];
        ptx::ldmatrix_x4_trans(r, token_row + step * 32 * kVPart + ((column + c * 16) ^ swizzle));
        loaded.y |= r[3];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t pick = odd ? 0x7531 : 0x6420;
          const uint32_t b0 = __byte_perm(r[0], r[1], pick) & mask[0];
          const uint32_t b1 = __byte_perm(r[2], r[3], pick) & mask[1];
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) mma(acc[m][c][odd], a[m], b0, b1);
        }
      }
    }
    return loaded;
  }

  __device__ __forceinline__ void run() {
    const ProducerSmem& producer = reinterpret_cast<const ProducerSmem&>(smem);
    // Tiles of this cluster so far. Both rings follow from it, which costs less than registers to
    // keep their cursors in.
    uint32_t sequence = 0;
    for (ItemReader items(smem.queue, lane); items.next();) {
      clear();
      clear_rows();
      int visible_in_tile = items.item().visible - items.item().first_tile * kTileTokens;
      for (int left = items.item().last_tile - items.item().first_tile; left > 0; --left) {
        const uint32_t p_stage = sequence % kPStages;
        const uint32_t p_full = ptx::smem_addr(&smem.p_full[p_stage]);
        ptx::mbarrier_wait_cluster(p_full, sequence / kPStages & 1);
        if (warp == 0 && lane == 0) ptx::mbarrier_arrive_expect_tx(p_full, kPMessageBytes);
        const uint32_t loaded_rows = rescale(smem.p[p_stage]);

        // A warp reads one of the tile's two parts of V.
        const uint32_t v_part = sequence * kVParts + column_group / 2;
        const uint32_t v_stage = v_part % kVStages;
        ptx::mbarrier_wait(ptx::smem_addr(&smem.v_full[v_stage]), v_part / kVStages & 1);
        const uint2 loaded = multiply(smem.p[p_stage], ptx::smem_addr(smem.v[v_stage]), visible_in_tile);
        __syncwarp();
        if (lane == 0) {
          ptx::mbarrier_arrive(ptx::after(ptx::smem_addr(&smem.v_empty[v_stage]), loaded.y, params.zero));
          // Stage s of P comes from producer s % 2, whose own stages are s / 2.
          const uint32_t p_empty = ptx::smem_addr(&producer.p_empty[p_stage / kProducers]);
          ptx::mbarrier_arrive_remote(
              ptx::after(ptx::mapa(p_empty, p_stage % kProducers), loaded.x | loaded_rows, params.zero));
        }
        ++sequence;
        visible_in_tile -= kTileTokens;
      }
      if (items.item().whole() || merge(items.item())) {
        sync();  // the sums are complete
        write_output(items.item().query);
        sync();  // and read, before the next item starts them anew
      }
    }
  }

  __device__ __forceinline__ void write_output(int query) const {
    const float kv_scale =
        params.kv_scale_ptr != 0 ? *reinterpret_cast<const float*>(params.kv_scale_ptr) : params.kv_scale;
    const int64_t first = static_cast<int64_t>(query) * params.heads;
    uint8_t* out = reinterpret_cast<uint8_t*>(params.out);
    float* lse = reinterpret_cast<float*>(params.lse);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        if (row >= params.heads) continue;
        const RowTotal total = smem.rows[row];
        const bool empty = total.max == -INFINITY;
        const float scale = empty ? 0.f : __fdividef(kv_scale, total.quantised_sum);
        if (lse != nullptr && half == 0 && column_group == 0 && quad == 0) {
          constexpr float kLn2 = 0.6931471805599453f;
          lse[first + row] = empty ? -INFINITY : kLn2 * (total.max - kLog2PMax + ptx::lg2(total.exact_sum));
        }
        const int column = half * kVColumns + column_group * (kColumnBlocks * 16) + quad * 4;
        uint8_t* dst = out + ((first + row) * kHeadDimV + column) * sizeof(uint16_t);
#pragma unroll
        for (int c = 0; c < kColumnBlocks; ++c) {
          const auto& even = acc[m][c][0];
          const auto& odd = acc[m][c][1];
          const uint2 v{ptx::cvt_bf16x2(even[2 * h] * scale, odd[2 * h] * scale),
                        ptx::cvt_bf16x2(even[2 * h + 1] * scale, odd[2 * h + 1] * scale)};
          *reinterpret_cast<uint2*>(dst + c * 16 * sizeof(uint16_t)) = v;
        }
      }
    }
  }

  // ---- split items -----------------------------------------------------------------------------

  __device__ __forceinline__ void store_partial(const Workspace& workspace, int slot) const {
    float4* dst = workspace.acc_of(slot, half) + warp * 32 + lane;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const auto& f = acc[m][c][odd];
          dst[((m * kColumnBlocks + c) * 2 + odd) * kMathThreads] = float4{f[0], f[1], f[2], f[3]};
        }
      }
    }
    float4* state = workspace.row_state_of(slot, half);
    for_own_rows([&](int m, int h) {
      const RowTotal total = smem.rows[row_of(m, h)];
      state[row_of(m, h)] = float4{total.max, total.quantised_sum, total.exact_sum, 0.f};
    });
  }

  // The workspace slot of split `i` of the list: only the first starts the item.
  __device__ __forceinline__ int split_slot(int i) const {
    return partial_slot(smem.split_workers[i], i == 0);
  }

  // Sums `count` partial results, every `stride`-th of the list from `first`, in that order.
  __device__ __forceinline__ void load_merged(const Workspace& workspace, int first, int count, int stride) {
    clear();
    float max[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) max[m][0] = max[m][1] = -INFINITY;
    for (int i = 0; i < count; ++i) {
      const float4* state = workspace.row_state_of(split_slot(first + i * stride), half);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) max[m][h] = fmaxf(max[m][h], __ldcg(&state[row_of(m, h)].x));
      }
    }
    for_own_rows([&](int m, int h) { smem.rows[row_of(m, h)] = RowTotal{max[m][h], 0.f, 0.f}; });
    for (int i = 0; i < count; ++i) {
      const int slot = split_slot(first + i * stride);
      const float4* state = workspace.row_state_of(slot, half);
      const float4* src = workspace.acc_of(slot, half) + warp * 32 + lane;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        float weight[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float split_max = __ldcg(&state[row_of(m, h)].x);
          weight[h] = split_max == -INFINITY ? 0.f : ptx::ex2(split_max - max[m][h]);
        }
#pragma unroll
        for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const float4 f = __ldcg(&src[((m * kColumnBlocks + c) * 2 + odd) * kMathThreads]);
            auto& a = acc[m][c][odd];
            a[0] += f.x * weight[0];
            a[1] += f.y * weight[0];
            a[2] += f.z * weight[1];
            a[3] += f.w * weight[1];
          }
        }
      }
      for_own_rows([&](int m, int h) {
        const float4 v = __ldcg(&state[row_of(m, h)]);
        const float weight = v.x == -INFINITY ? 0.f : ptx::ex2(v.x - max[m][h]);
        RowTotal& total = smem.rows[row_of(m, h)];
        total.quantised_sum += v.y * weight;
        total.exact_sum += v.z * weight;
      });
    }
  }

  // Counts this CTA in; true in all its math threads if it is the last of `arrivals`. What the
  // others wrote before they arrived is then visible here.
  __device__ __forceinline__ bool arrive_last(uint32_t* counter, int arrivals) const {
    sync();
    if (warp == 0 && lane == 0) {
      const bool last = ptx::arrive_gpu(counter) == static_cast<uint32_t>(arrivals - 1);
      if (last) *counter = 0;  // ready for the next launch
      smem.last_arriver = last;
    }
    sync();
    return smem.last_arriver != 0;
  }

  // Lists the workers of the item's splits in the order of their tiles.
  __device__ __forceinline__ void list_splits(const Item& item) const {
    const Share& share = smem.queue.share;
    const int first = worker_of(item.item_begin, share.length, share.workers);
    const int last = worker_of(item.item_begin + item.tiles - 1, share.length, share.workers);
    int count = 0;
    for (int c0 = first; c0 <= last; c0 += 32) {
      const int c = c0 + lane;
      const int begin = item_cut(share, params, c, item.item_begin, item.tiles);
      const int end = item_cut(share, params, c + 1, item.item_begin, item.tiles);
      const bool has_piece = c <= last && begin < end;
      const uint32_t ballot = __ballot_sync(0xffffffff, has_piece);
      if (has_piece) {
        smem.split_workers[count + __popc(ballot & ((1u << lane) - 1))] = static_cast<uint8_t>(c);
      }
      count += __popc(ballot);
    }
    if (lane == 0) smem.splits = count;
  }

  // Publishes this worker's piece. Returns true if this CTA was the last to arrive: it then holds
  // the merged result of the whole item. Splits are summed in the order of their tiles, within
  // groups and then over groups, whoever arrives last.
  __device__ __forceinline__ bool merge(const Item& item) {
    const Workspace workspace(params);
    const int worker = ptx::clusterid_x();
    if (warp == 0) list_splits(item);
    sync();
    const int splits = smem.splits;
    const int group_size = merge_group_size(splits);
    const int groups = (splits + group_size - 1) / group_size;
    int first = 0;
    while (smem.split_workers[first] != worker) ++first;
    int slot = split_slot(first);
    first = first / group_size * group_size;
    int count = min(group_size, splits - first);
    int stride = 1;
    for (int level = 0;; ++level) {
      store_partial(workspace, slot);
      slot = split_slot(first);
      if (!arrive_last(workspace.counter(level, slot, half), count)) return false;
      load_merged(workspace, first, count, stride);
      if (level == 1 || groups == 1) return true;
      // The group's result goes to the slot of its first split. Every thread must have read the row
      // states there before.
      sync();
      first = 0;
      count = groups;
      stride = group_size;
    }
  }
};

}  // namespace mla::cluster

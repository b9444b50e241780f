// SPDX-License-Identifier: Apache-2.0
//
// The math warpgroups. Rows of Q are the N dimension of both products:
//
//   S^T = K Q^T    64 tokens x rows; group g computes every other tile (K and Q from shared memory)
//   O^T += V^T P^T 64 columns x rows a block; each group holds half of the columns and takes P of all
//                  tiles (V^T from registers, P from shared memory)
//
// so that few rows cost little, and V needs no transposed copy in shared memory: a transposed 16-bit
// ldmatrix gives (2 tokens) x (2 columns), and byte permutes of two such registers give the fragment
// of V^T.
#pragma once

#include "kernels/common/ptx/math.cuh"
#include "kernels/common/ptx/mma.cuh"
#include "kernels/common/scale.cuh"
#include "kernels/hopper/config.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace mla::hopper {

// Reduces each of kCount values over the eight lanes of equal lane % 4. With every step a lane gives
// half of its values away, so that in the end it has kCount / 8 of them (but at least one, then in
// several lanes); MathWarp::first_left tells which.
template <int kCount, class Combine>
__device__ __forceinline__ void reduce_columns(float (&v)[kCount], int lane, const Combine& combine) {
  int count = kCount;
#pragma unroll
  for (int mask = 16; mask >= 4; mask /= 2) {
    if (count > 1) {
      const bool upper = (lane & mask) != 0;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i < count / 2) {
          const float keep = upper ? v[count / 2 + i] : v[i];
          const float give = upper ? v[i] : v[count / 2 + i];
          v[i] = combine(keep, __shfl_xor_sync(0xffffffff, give, mask));
        }
      }
      count /= 2;
    } else {
      v[0] = combine(v[0], __shfl_xor_sync(0xffffffff, v[0], mask));
    }
  }
}

// The results of a word: two columns of two rows, of two blocks.
struct WordSums {
  float4 first, second;  // as acc: {even row, odd row, even row's next column, odd row's next column}

  __device__ __forceinline__ void add(const uint4& f, float even, float odd) {
    const auto low = [](uint32_t x) { return __uint_as_float(x << 16); };
    const auto high = [](uint32_t x) { return __uint_as_float(x & 0xffff0000); };
    first.x = fmaf(low(f.x), even, first.x);
    first.z = fmaf(high(f.x), even, first.z);
    first.y = fmaf(low(f.y), odd, first.y);
    first.w = fmaf(high(f.y), odd, first.w);
    second.x = fmaf(low(f.z), even, second.x);
    second.z = fmaf(high(f.z), even, second.z);
    second.y = fmaf(low(f.w), odd, second.y);
    second.w = fmaf(high(f.w), odd, second.w);
  }
};

struct MathWarp {
  static constexpr int kGroups = kCtaRows / 8;                    // of eight rows, a fragment each
  static constexpr int kColumns = 2 * kGroups;                    // rows of Q that this thread has scores of
  static constexpr int kLeft = kColumns >= 8 ? kColumns / 8 : 1;  // of them after reduce_columns

  const DecodeParams& params;
  Smem& smem;
  const int rank;   // CTA of the cluster
  const int group;  // math group
  const int warp;   // of the group
  const int lane;
  const int quad;  // lane % 4: rows 8 j + 2 quad + {0, 1}
  float scale;     // of raw scores to log2; positive (a negative one is in the sign of Q)
  uint32_t q_sign = 0;

  float acc[kBlocks][kCtaRows / 2];
  float s[kCtaRows / 2];        // scores of a tile; then the product of a block
  float sum_exact[kLeft];       // of P over this warp; row left_row(i)
  float sum_quantised[2];       // of this group's P as quantised; rows 8 (lane / 4) + 2 quad + {0, 1}
  bool needs_reference = true;  // of P, for the next pair; the same in all threads
  uint32_t buffer = 0;          // of P
  uint32_t high_buffer = 0;     // of smem.high, which second parts leave alone

  // Tiles of this CTA so far, which stage and phase of the ring follow from.
  uint32_t tiles_before = 0;

  __device__ __forceinline__ MathWarp(const DecodeParams& p, Smem& sm, int r, int w, int l)
      : params(p), smem(sm), rank(r), group(w / kGroupWarps), warp(w % kGroupWarps), lane(l), quad(l % 4) {
    scale = load_score_scale(p);
    if (scale < 0) {
      scale = -scale;
      q_sign = 0x80808080;
    }
    if (scale == 0) scale = 0x1p-126f;  // so that a masked score, -inf, stays what it is
    // Scores that a large factor makes as large as 2^24 must be rounded before they are compared: the
    // reference, which is their maximum, is.
    const bool large = !(scale <= 1);
    if (thread() == 0) smem.score_factor = large ? scale : 1.f;  // read after a barrier of run
    if (large) scale = 1;
  }

  __device__ __forceinline__ int thread() const { return (group * kGroupWarps + warp) * 32 + lane; }
  __device__ __forceinline__ void sync() const { ptx::named_barrier(kBarrierMath, kMathThreads); }
  __device__ __forceinline__ bool any(bool flag) const {
    return ptx::named_barrier_or(kBarrierMath, kMathThreads, flag);
  }

  // ---- rows ------------------------------------------------------------------------------------

  __device__ __forceinline__ void prepare_rows(const Item& item) {
    const int n = thread();
    if (n < kCtaRows) {
      const int row = rank * kCtaRows + n;
      int64_t q = -1, out = 0, lse = 0;
      int bound = item.visible;
      if (row < rows_of(rule(), params, item)) {
        const RowPlace place = place_of(params, item, row);
        const int64_t query = item.first_query + place.token;
        q = query * params.q_token_stride + place.head * params.q_head_stride;
        out = query * params.out_token_stride + place.head * params.out_head_stride;
        lse = query * params.lse_token_stride + place.head * params.lse_head_stride;
        bound = visible_to(params, item, place.token);
      }
      smem.q_offset[n] = q;
      smem.out_offset[n] = out;
      smem.lse_offset[n] = lse;
      smem.bound[n] = bound;
      smem.rows[n] = RowState{-INFINITY, -INFINITY, -INFINITY, 0.f};
      smem.shift[n] = kLog2PMax;
    }
  }

  __device__ __forceinline__ void load_q() {
    constexpr int kChunks = kHeadDimK / 16;
    constexpr int kMost = (kCtaRows * kChunks + kMathThreads - 1) / kMathThreads;  // a thread
    const int n = ptx::thread_id();
    uint4 chunks[kMost];  // all loads at once: what counts is the latency
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int i = n + k * kMathThreads;
      chunks[k] = uint4{0, 0, 0, 0};
      const int64_t offset = i < kCtaRows * kChunks ? smem.q_offset[i / kChunks] : -1;
      if (offset >= 0) chunks[k] = *reinterpret_cast<const uint4*>(params.q + offset + i % kChunks * 16);
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int i = n + k * kMathThreads;
      if (i >= kCtaRows * kChunks) break;
      const int row = i / kChunks, chunk = i % kChunks;
      uint4 v = chunks[k];
      v = uint4{v.x ^ q_sign, v.y ^ q_sign, v.z ^ q_sign, v.w ^ q_sign};
      uint8_t* dst = chunk < kPanels * 8
                         ? smem.q.latent[chunk / 8] + row * kPanel + (((chunk % 8) ^ (row & 7)) << 4)
                         : smem.q.rope + row * kRope + (((chunk - kPanels * 8) ^ ((row >> 1) & 3)) << 4);
      *reinterpret_cast<uint4*>(dst) = v;
    }
    ptx::fence_proxy_async();
  }

  // ---- scores and P ----------------------------------------------------------------------------

  __device__ __forceinline__ void scores(uint32_t tile) {
    const uint32_t k = __shfl_sync(0xffffffff, ptx::wgmma_address(tile), 0);  // uniform
    const uint32_t q = ptx::wgmma_address(ptx::smem_addr(smem.q.latent));
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHeadDimV / 32; ++step) {
      const int panel = step / 4, offset = step % 4 * 32;
      ptx::wgmma_ss<kPanel>(s, k + (panel * kPanelBytes + offset) / 16,
                            q + (panel * kCtaRows * kPanel + offset) / 16, step > 0);
    }
#pragma unroll
    for (int step = 0; step < kRope / 32; ++step) {
      ptx::wgmma_ss<kRope>(s, k + kPanels * kPanelBytes / 16 + step * 2,
                           q + kPanels * kCtaRows * kPanel / 16 + step * 2, 1);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
  }

  // Applies score_factor and gives hidden scores -inf. This thread's are tokens
  // warp * 16 + lane / 4 + {0, 8}.
  __device__ __forceinline__ void mask(int tile_begin, uint32_t bad) {
    const int chunk_log2 = params.box_tokens_log2;
    const float factor = smem.score_factor;
#pragma unroll
    for (int i = 0; i < kCtaRows / 2; ++i) s[i] *= factor;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int in_tile = warp * 16 + lane / 4 + h * 8;
      const bool hidden = (bad >> (in_tile >> chunk_log2)) & 1;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int2 bound = *reinterpret_cast<const int2*>(&smem.bound[8 * j + 2 * quad]);
        if (hidden || tile_begin + in_tile >= bound.x) s[4 * j + 2 * h] = -INFINITY;
        if (hidden || tile_begin + in_tile >= bound.y) s[4 * j + 2 * h + 1] = -INFINITY;
      }
    }
  }

  // Maximum of each row over the tile, in smem.by_warp, a part for each warp.
  __device__ __forceinline__ void store_maxima() {
    float m[kColumns];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      m[2 * j] = fmaxf(s[4 * j], s[4 * j + 2]);
      m[2 * j + 1] = fmaxf(s[4 * j + 1], s[4 * j + 3]);
    }
    reduce_columns(m, lane, [](float a, float b) { return fmaxf(a, b); });
    store_reduced(smem.by_warp[group * kGroupWarps + warp], m);
  }

  // First of the kLeft values of reduce_columns that this lane has.
  __device__ __forceinline__ int first_left() const {
    const int g = lane / 4;  // bits 2, 1, 0 chose the upper half in turn
    return kColumns >= 8 ? g * kLeft : g * kColumns / 8;
  }

  __device__ __forceinline__ int left_row(int i) const {
    const int column = first_left() + i;
    return column / 2 * 8 + quad * 2 + column % 2;
  }

  template <int kCount>
  __device__ __forceinline__ void store_reduced(float (&to)[kCtaRows], const float (&v)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) to[left_row(i)] = v[i];
  }

  // Computes P of this group's tile of a pair (none: all hidden), or of its second part. Returns whether
  // there is a second part. A barrier of all math threads is the last thing it does.
  __device__ __forceinline__ bool produce(const Item& item, int first_of_pair, bool has_tile, uint32_t stage,
                                          bool second) {
    // Most pairs go with the references of the ones before. New ones are found if the last pair was far
    // below one, or, all over again, if P saturates. P has two buffers: a slow warp may still multiply that
    // of the pair before.
    buffer ^= 1;
    if (!second) high_buffer ^= 1;
    bool find = second || needs_reference, more = false;
    float sums[kColumns];
    for (;;) {
      if (has_tile) {
        scores(ptx::smem_addr(&smem.kv[stage]));
        const int tile_begin = (item.first_tile + first_of_pair + group) * kTileTokens;
        const uint32_t bad = smem.bad_chunks[stage];
        if (bad != 0 || tile_begin + kTileTokens > item.visible_first || scale == 1) mask(tile_begin, bad);
      } else {
#pragma unroll
        for (int i = 0; i < kCtaRows / 2; ++i) s[i] = -INFINITY;
      }
      MLA_MARK(kScores);
      if (find) more = find_references(item, first_of_pair, second);
      const bool saturates = store_p(sums, second);
      ptx::fence_proxy_async();
      MLA_MARK(kWeights);
      if (!any(saturates && !find)) break;
      find = true;
    }
#pragma unroll
    for (int i = 0; i < kLeft; ++i) sum_exact[i] += sums[i];
    return more;
  }

  // Chooses the references of the rows by the maxima of a pair. Where one token may rule (the pair is the
  // first of the sequence, or has a maximum far above those before), the tokens far below it are left to a
  // second part, with a reference of their own: they would be lost in the rounding, and matter if the value
  // of the one is small (attention sinks). Returns whether there is such a part. Each row by itself: what
  // becomes of it does not depend on the other rows.
  __device__ __forceinline__ bool find_references(const Item& item, int first_of_pair, bool second) {
    if (second) each_below_threshold([](float&) {}, [](float& score) { score = -INFINITY; });
    store_maxima();
    sync();
    bool changed = false, rules = false;
    if (const int n = thread(); n < kCtaRows) {
      float raw = smem.by_warp[0][n];
#pragma unroll
      for (int w = 1; w < kMathWarps; ++w) raw = fmaxf(raw, smem.by_warp[w][n]);
      const float max = raw * scale;
      RowState row = smem.rows[n];
      const float before = row.reference;
      const bool wanted = second || first_of_pair == 0 || max > before || row_was_far_below(n);
      if (wanted && max > -INFINITY) {
        rules = !second && (item.first_tile + first_of_pair == 0 || max > row.highest + kFall);
        row.highest = fmaxf(row.highest, max);
        row.reference = fmaxf(max + kMargin, row.top - kDepth);
        row.top = fmaxf(row.top, row.reference);
      }
      if (!second) smem.threshold[n] = rules ? raw - kSpread / scale : -INFINITY;
      changed = row.reference != before;
      smem.rescale[n] = changed ? ptx::ex2(before - row.reference) : 1.f;
      smem.shift[n] = kLog2PMax - (row.reference == -INFINITY ? 0.f : row.reference);
      smem.rows[n] = row;
    }
    if (any(changed)) rescale();
    if (second || !any(rules)) return false;
    bool low = false;  // are there tokens that it would save
    each_below_threshold([&](float& score) { low |= score > -INFINITY; }, [](float&) {});
    if (!any(low)) return false;
    each_below_threshold([](float& score) { score = -INFINITY; }, [](float&) {});
    return true;
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) sum_exact[i] *= smem.rescale[left_row(i)];
    const float2 own = *reinterpret_cast<const float2*>(&smem.rescale[8 * (lane / 4 % kGroups) + 2 * quad]);
    sum_quantised[0] *= own.x;
    sum_quantised[1] *= own.y;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(&smem.rescale[8 * j + 2 * quad]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        acc[block][4 * j] *= factor.x;
        acc[block][4 * j + 1] *= factor.y;
        acc[block][4 * j + 2] *= factor.x;
        acc[block][4 * j + 3] *= factor.y;
      }
    }
  }

  template <class Below, class Other>
  __device__ __forceinline__ void each_below_threshold(const Below& below, const Other& other) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 threshold = *reinterpret_cast<const float2*>(&smem.threshold[8 * j + 2 * quad]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (s[4 * j + i] < (i % 2 == 0 ? threshold.x : threshold.y)) {
          below(s[4 * j + i]);
        } else {
          other(s[4 * j + i]);
        }
      }
    }
  }

  // P as e4m3 to shared memory, row by row: byte 16 w + 2 i + h of a row is token 16 w + i + 8 h.
  // Gives the exact sums of the rows over this warp (reduce_columns). Returns whether one saturates.
  __device__ __forceinline__ bool store_p(float (&sums)[kColumns], bool second) {
    const uint32_t p = ptx::smem_addr(smem.p[buffer][group]);
    uint32_t words[kGroups];  // {row 2 quad: tokens, row 2 quad + 1: tokens}
    uint32_t high = 0, saturated = 0;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 shifts = *reinterpret_cast<const float2*>(&smem.shift[8 * j + 2 * quad]);
      const float shift[2] = {shifts.x, shifts.y};
      uint16_t pairs[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float a = ptx::ex2(fmaf(s[4 * j + e], scale, shift[e])),
                    b = ptx::ex2(fmaf(s[4 * j + 2 + e], scale, shift[e]));
        sums[2 * j + e] = a + b;
        pairs[e] = ptx::cvt_e4m3x2(a, b);
      }
      words[j] = pairs[0] | static_cast<uint32_t>(pairs[1]) << 16;
      saturated |= words[j] + 0x02020202;  // bit 7: 0x7e, the largest value, or NaN
      // Bit 6 or 7 of an e4m3 value plus 0x10: it is 0.5 or more, less than ten powers of two below the
      // reference.
      const uint32_t sum = words[j] + 0x10101010, any = sum | sum >> 1;
      high |= ((any | any >> 8) & 0x00400040) >> 6 << j;
    }
    if constexpr (kGroups == 2) {
      const int row = lane & 15;
      ptx::stmatrix_x2_trans(p + row * kTileTokens + ((warp ^ ((row >> 1) & 3)) << 4), words[0], words[1]);
    } else {
      // Lane l gives the address of row l % 8 of fragment l / 8.
      const uint32_t dst = p + lane * kTileTokens + ((warp ^ ((lane >> 1) & 3)) << 4);
#pragma unroll
      for (int j = 0; j < kGroups; j += 4) {
        ptx::stmatrix_x4_trans(dst + j * 8 * kTileTokens, words[j], words[j + 1], words[j + 2], words[j + 3]);
      }
    }
    reduce_columns(sums, lane, [](float a, float b) { return a + b; });
#pragma unroll
    for (int mask = 4; mask <= 16; mask *= 2) high |= __shfl_xor_sync(0xffffffff, high, mask);
    if (lane < 4 && !second) smem.high[high_buffer][quad][group * kGroupWarps + warp] = high;
    return (saturated & 0x80808080) != 0;
  }

  // Rows (bits as in smem.high) with a token near their reference in the last pair; to be asked after a
  // barrier.
  __device__ __forceinline__ uint32_t near_rows(uint32_t of_buffer, int of_quad) const {
    static_assert(kMathWarps == 8, "two vectors of four");
    const uint4 a = reinterpret_cast<const uint4*>(smem.high[of_buffer][of_quad])[0];
    const uint4 b = reinterpret_cast<const uint4*>(smem.high[of_buffer][of_quad])[1];
    return a.x | a.y | a.z | a.w | b.x | b.y | b.z | b.w;
  }
  __device__ __forceinline__ bool row_was_far_below(int row) const {
    return !(near_rows(high_buffer ^ 1, row % 8 / 2) >> (row / 8 + row % 2 * 16) & 1);
  }
  __device__ __forceinline__ bool any_was_far_below() const {
    return __any_sync(0xffffffff, near_rows(high_buffer, quad) != ((1u << kGroups) - 1) * 0x10001u);
  }

  // ---- O ---------------------------------------------------------------------------------------

  // Chunk of 16 bytes of a token's row of V that this warp reads, where it stands.
  __device__ __forceinline__ uint32_t v_chunk(int block, int token) const {
    const int column = group * kGroupColumns + block * 64;
    return column / kPanel * kPanelBytes + token * kPanel +
           (((column % kPanel / 16 + warp) ^ (token & 7)) << 4);
  }

  // Clears what this warp reads of the values of hidden tokens: 0 times a NaN of the last page's tail would
  // not be 0.
  __device__ __forceinline__ void hide_values(uint32_t stage, int visible) const {
    uint8_t* tile = reinterpret_cast<uint8_t*>(&smem.kv[stage]);
    for (int token = visible + lane; token < kTileTokens; token += 32) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        *reinterpret_cast<uint4*>(tile + v_chunk(block, token)) = uint4{0, 0, 0, 0};
      }
    }
    ptx::fence_proxy_async();  // for the scores of a second part
    __syncwarp();
  }

  // The first token of a tile in [begin, end) of which this warp's columns of V hold a NaN; `end` if there
  // is none.
  __device__ __forceinline__ int first_nan(uint32_t stage, int begin, int end) const {
    static_assert(kBlocks == 4, "half a warp for a token, four lanes a block");
    const uint8_t* tile = reinterpret_cast<const uint8_t*>(&smem.kv[stage]);
    for (int first = begin; first < end; first += 2) {
      const int token = min(first + lane / 16, end - 1);
      const uint32_t word =
          *reinterpret_cast<const uint32_t*>(tile + v_chunk(lane % 16 / 4, token) + lane % 4 * 4);
      // 0x7f and 0xff are the NaN of e4m3.
      const uint32_t found =
          __ballot_sync(0xffffffff, (((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080) != 0);
      if (found != 0) return (found & 0xffff) != 0 ? first : first + 1;
    }
    return end;
  }

  // Tokens [begin, end) of a tile are seen by the last row of the row tile and not by the first. A row that
  // does not see a token has P 0 for it, but 0 times a NaN of its value would be NaN. Where there is such a
  // NaN, this makes NaN of the rows that see it, which need nothing of what follows it, either. Returns the
  // tokens to multiply.
  __device__ __forceinline__ int poison_rows(uint32_t stage, int tile_begin, int begin, int end) {
    const int clean = first_nan(stage, begin, end);
    if (clean < end) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int2 bound = *reinterpret_cast<const int2*>(&smem.bound[8 * j + 2 * quad]);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if ((i % 2 == 0 ? bound.x : bound.y) > tile_begin + clean) {
              acc[block][4 * j + i] = __int_as_float(0x7fffffff);
            }
          }
        }
      }
    }
    return clean;
  }

  // What is to be done with a tile's values where some rows do not see some of its tokens.
  __device__ __forceinline__ void clean_values(const Item& item, int tile, uint32_t stage) {
    const int tile_begin = (item.first_tile + tile) * kTileTokens;
    const int visible = min(max(item.visible - tile_begin, 0), kTileTokens);
    const int visible_to_all = min(max(item.visible_first - tile_begin, 0), visible);
    hide_values(stage, poison_rows(stage, tile_begin, visible_to_all, visible));
  }

  // V of a block of 64 columns by 32 tokens, as transposed pairs of columns.
  __device__ __forceinline__ void load_v(uint32_t (&r)[4], uint32_t tile, int block, int step) const {
    ptx::ldmatrix_x4_trans(r, tile + step * 32 * kPanel + v_chunk(block, lane));
  }

  // The fragment of V^T: row r is column 2 r of the block, row r + 8 column 2 r + 1.
  __device__ __forceinline__ void transpose_v(uint32_t (&a)[4], const uint32_t (&r)[4]) const {
    a[0] = __byte_perm(r[0], r[1], 0x6240);
    a[1] = __byte_perm(r[0], r[1], 0x7351);
    a[2] = __byte_perm(r[2], r[3], 0x6240);
    a[3] = __byte_perm(r[2], r[3], 0x7351);
  }

  // O^T += V^T P^T of a pair of tiles. `p` is the address of P as wgmma_address, uniform.
  //
  // The tensor core keeps few bits of a long sum; a pair's is short, and goes on in float. What a step
  // needs is loaded behind the product under way. Up to 32 rows there are registers for two products, and
  // one is added while the next is computed.
  __device__ __forceinline__ void multiply(uint32_t p, const uint32_t (&stages)[kMathGroups]) {
    constexpr int kProducts = kCtaRows < 64 ? 2 : 1;
    constexpr int kSteps = kPairTokens / 32;
    constexpr int kTileSteps = kTileTokens / 32;
    const uint32_t tiles[kMathGroups] = {ptx::smem_addr(&smem.kv[stages[0]]),
                                         ptx::smem_addr(&smem.kv[stages[1]])};
    uint32_t raw[kSteps][4], a[kProducts][kSteps][4];
    const auto load = [&](int block) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load_v(raw[step], tiles[step / kTileSteps], block, step % kTileSteps);
      }
    };
    const auto transpose = [&](int block) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) transpose_v(a[block % kProducts][step], raw[step]);
    };
    float other[kCtaRows / 2];
    const auto issue = [&](float(&product)[kCtaRows / 2], const uint32_t(&f)[kSteps][4]) {
      ptx::pin(product);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_rs<kTileTokens>(
            product, f[step], p + step / kTileSteps * kCtaRows * kTileTokens / 16 + step % kTileSteps * 2,
            step > 0);
      }
      ptx::wgmma_commit();
    };
    const auto add = [&](int block, float(&product)[kCtaRows / 2]) {
#pragma unroll
      for (int i = 0; i < kCtaRows / 2; ++i) acc[block][i] += product[i];
    };
    load(0);
    add_sums(p + group * kCtaRows * kTileTokens / 16);
    transpose(0);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if constexpr (kProducts == 2) {
        if (block % 2 == 0) {
          issue(s, a[0]);
        } else {
          issue(other, a[kProducts - 1]);
        }
        if (block + 1 < kBlocks) load(block + 1);
        if (block > 0) {
          ptx::wgmma_wait<1>();
          if (block % 2 == 0) {
            ptx::pin(other);
          } else {
            ptx::pin(s);
          }
        }
        if (block + 1 < kBlocks) transpose(block + 1);
        if (block > 0) {
          if (block % 2 == 0) {
            add(block - 1, other);
          } else {
            add(block - 1, s);
          }
        }
      } else {
        issue(s, a[0]);
        if (block + 1 < kBlocks) load(block + 1);
        ptx::wgmma_wait<0>();
        ptx::pin(s);
        if (block + 1 < kBlocks) transpose(block + 1);
        add(block, s);
      }
    }
    if constexpr (kProducts == 2) {
      ptx::wgmma_wait<0>();
      ptx::pin(other);
      add(kBlocks - 1, other);
    }
  }

  // The sums of P as quantised normalise the output, so that the scale and part of the rounding cancel. The
  // tensor core adds them up: a product with ones has them in every row. Of this group's tile.
  __device__ __forceinline__ void add_sums(uint32_t p) {
    constexpr uint32_t kOnes[4] = {0x38383838, 0x38383838, 0x38383838, 0x38383838};
    ptx::pin(s);
    ptx::wgmma_fence();
    ptx::wgmma_rs<kTileTokens>(s, kOnes, p, 0);
    ptx::wgmma_rs<kTileTokens>(s, kOnes, p + 2, 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    const int mine = lane / 4 % kGroups;
    float2 sum{s[0], s[1]};
#pragma unroll
    for (int j = 1; j < kGroups; ++j) {
      if (mine == j) sum = float2{s[4 * j], s[4 * j + 1]};
    }
    sum_quantised[0] += sum.x;
    sum_quantised[1] += sum.y;
  }

  // ---- items -----------------------------------------------------------------------------------

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kCtaRows / 2; ++i) acc[block][i] = 0.f;
    }
  }

  // Of the tile of the given number in this piece of an item.
  __device__ __forceinline__ uint32_t stage_of(int tile) const { return (tiles_before + tile) % kStages; }
  __device__ __forceinline__ void wait_tile(int tile) const {
    ptx::mbarrier_wait(ptx::smem_addr(&smem.full[stage_of(tile)]), (tiles_before + tile) / kStages & 1);
  }

  __device__ __forceinline__ void release(uint32_t stage) const {
    const uint32_t empty = ptx::smem_addr(&smem.empty[stage]);
    if constexpr (kClusterSize > 1) {
      if (lane < kClusterSize) ptx::mbarrier_arrive_remote(ptx::mapa(empty, lane));
    } else {
      if (lane == 0) ptx::mbarrier_arrive(empty);
    }
  }

  __device__ __forceinline__ void run() {
    int pieces = 0;
    bool described = false;  // the rows are those of the last piece
    uint32_t arrived = 0;    // of the last piece, in thread 0
    for (ItemReader items(smem.queue, lane); items.next();) {
      const Item& item = items.item();
      MLA_MARK(kItemTaken);
      sync();  // the item before is done with the rows
      prepare_rows(item);
      clear();
#pragma unroll
      for (int i = 0; i < kLeft; ++i) sum_exact[i] = 0.f;
      sum_quantised[0] = sum_quantised[1] = 0.f;
      needs_reference = true;
      sync();
      if (item.tiles > 0) load_q();
      sync();
      MLA_MARK(kQueriesLoaded);

      const int count = item.last_tile - item.first_tile;
      for (int first = 0; first < count; first += kMathGroups) {
        // The last pair may lack its second tile: the first stands for it, with P 0.
        const bool whole = first + 1 < count;
        const uint32_t stages[kMathGroups] = {stage_of(first), stage_of(whole ? first + 1 : first)};
        const bool has_tile = group == 0 || whole;
        const int own = has_tile ? first + group : first;
        MLA_MARK(kPair);
        wait_tile(own);
        MLA_MARK(kTileThere);
        bool more = produce(item, first, has_tile, stage_of(own), false);
        MLA_MARK(kAgreed);
        wait_tile(group == 0 && whole ? first + 1 : first);
        if (item.visible_first - (item.first_tile + first) * kTileTokens < kPairTokens) {
          clean_values(item, first, stages[0]);
          if (whole) clean_values(item, first + 1, stages[1]);
        }
        for (;;) {
          needs_reference = any_was_far_below();
          const uint32_t p = __shfl_sync(0xffffffff, ptx::wgmma_address(ptx::smem_addr(smem.p[buffer])), 0);
          MLA_MARK(kProducts);
          multiply(p, stages);
          MLA_MARK(kPairDone);
          if (!more) break;
          sync();  // the second part's scores are of tiles that others may have cleared
          produce(item, first, has_tile, stage_of(own), true);
          more = false;
        }
        __syncwarp();
        release(stages[0]);
        if (whole) release(stages[1]);
      }
      tiles_before += count;
      finish_sums();
      MLA_MARK(kTilesDone);
      described = false;
      if (item.tiles == 0 || item.whole()) {
        write_output();
      } else {
        if (thread() == 0) smem.pieces[pieces] = item;
        ptx::mbarrier_wait(ptx::smem_addr(&smem.splits_full[pieces]), 0);
        arrived = publish_piece<Layout>(params, *this, smem.splits[pieces], rank);
        ++pieces;
        described = true;
        MLA_MARK(kPublished);
      }
    }
    // The last piece first: its rows may still be described.
#pragma unroll 1
    for (int i = pieces - 1; i >= 0; --i) {
      if (!described) {
        sync();
        prepare_rows(smem.pieces[i]);
        sync();
      }
      described = false;
      merge_together<Layout>(params, *this, smem.splits[i], arrived, rank, kMostSlices);
      arrived = 0;
      MLA_MARK(kMerged);
    }
  }

  // The totals of every row, in smem.totals.
  __device__ __forceinline__ void finish_sums() {
    store_reduced(smem.by_warp[group * kGroupWarps + warp], sum_exact);
    if (warp == 0 && lane / 4 < kGroups) {  // every warp of the group has them
      *reinterpret_cast<float2*>(&smem.quantised_sum[group][8 * (lane / 4) + 2 * quad]) =
          float2{sum_quantised[0], sum_quantised[1]};
    }
    sync();
    if (const int n = thread(); n < kCtaRows) {
      RowTotal total{smem.rows[n].reference, 0.f, 0.f, 0.f};
#pragma unroll
      for (int g = 0; g < kMathGroups; ++g) total.quantised_sum += smem.quantised_sum[g][n];
#pragma unroll
      for (int w = 0; w < kMathWarps; ++w) total.exact_sum += smem.by_warp[w][n];
      smem.totals[n] = total;
    }
  }

  // Writes lse of a row and gives the factor of its output.
  __device__ __forceinline__ float finish_row(int row, const RowTotal& total, bool write_lse) const {
    // No token at all; a NaN among the scores leaves the maximum alone, but not the sums.
    const bool empty = total.reference == -INFINITY && total.exact_sum == 0.f;
    if (write_lse && params.lse != 0 && smem.q_offset[row] >= 0) {
      constexpr float kLn2 = 0.6931471805599453f;
      reinterpret_cast<float*>(params.lse)[smem.lse_offset[row]] =
          empty ? -INFINITY : kLn2 * (total.reference - kLog2PMax + ptx::lg2(total.exact_sum));
    }
    return empty ? 0.f : __fdividef(load_kv_scale(params), total.quantised_sum);
  }

  __device__ __forceinline__ void write_output() {
    const int n = thread();
    if (n < kCtaRows) smem.scale[n] = finish_row(n, smem.totals[n], true);  // written by the same thread
    sync();
    const int column = group * kGroupColumns + warp * 16 + lane / 4 * 2;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * j + 2 * quad + e;
        if (smem.q_offset[row] < 0) continue;
        const float scale = smem.scale[row];
        uint8_t* dst =
            reinterpret_cast<uint8_t*>(params.out + smem.out_offset[row]) + column * sizeof(uint16_t);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          *reinterpret_cast<uint32_t*>(dst + block * 64 * sizeof(uint16_t)) =
              ptx::cvt_bf16x2(acc[block][4 * j + e] * scale, acc[block][4 * j + 2 + e] * scale);
        }
      }
    }
  }

  // ---- split items (merge_together) --------------------------------------------------------------

  // Word (j * kBlocks / 2 + block / 2) * kMathThreads + thread has the accumulators of rows 8 j ... 8 j + 7
  // of two blocks of columns, divided by the sums of the rows, as bf16; so a slice is a range of words.
  __device__ __forceinline__ void store_partial(int slot) {
    const int n = ptx::thread_id();
    if (n < kCtaRows) {
      const RowTotal total = smem.totals[n];
      Layout::row_state(params, slot, rank)[n] =
          float4{total.reference, total.quantised_sum, total.exact_sum, 0.f};
      smem.scale[n] = total.quantised_sum == 0.f ? 0.f : __frcp_rn(total.quantised_sum);
    }
    sync();
    uint4* dst = reinterpret_cast<uint4*>(Layout::acc(params, slot, rank)) + n;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 scales = *reinterpret_cast<const float2*>(&smem.scale[8 * j + 2 * quad]);
#pragma unroll
      for (int pair = 0; pair < kBlocks / 2; ++pair) {
        const auto two = [&](const float(&a)[kCtaRows / 2], int i) {
          return ptx::cvt_bf16x2(a[4 * j + i] * (i % 2 == 0 ? scales.x : scales.y),
                                 a[4 * j + i + 2] * (i % 2 == 0 ? scales.x : scales.y));
        };
        // Two columns of the even and of the odd row, of the first and the second block.
        const auto &first = acc[2 * pair], &second = acc[2 * pair + 1];
        dst[(j * kBlocks / 2 + pair) * kMathThreads] =
            uint4{two(first, 0), two(first, 1), two(second, 0), two(second, 1)};
      }
    }
  }

  template <class Combine>
  static __device__ __forceinline__ float reduce_warp(float v, const Combine& combine) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v = combine(v, __shfl_xor_sync(0xffffffff, v, mask));
    return v;
  }

  // The weights of all splits for rows [first, first + rows), by split: their shares of the sums, times the
  // scale of the output. A warp a row, or with few splits a thread a row. `write_lse`: this slice is the
  // first of the rows.
  template <class List>
  __device__ __forceinline__ void weigh_splits(const List& list, int first, int rows, bool write_lse) {
    const int splits = list.splits, n = ptx::thread_id();
    const auto weight_of = [](float reference, float top) {
      return top == -INFINITY ? 1.f : ptx::ex2(reference - top);
    };
    constexpr int kFew = 4;
    if (splits <= kFew) {
      if (n >= rows) return;
      float4 state[kFew];
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        state[i] = float4{-INFINITY, 0.f, 0.f, 0.f};
        if (i < splits) state[i] = __ldcg(&Layout::row_state(params, list.slot[i], rank)[first + n]);
      }
      RowTotal total{-INFINITY, 0.f, 0.f, 0.f};
#pragma unroll
      for (int i = 0; i < kFew; ++i) total.reference = fmaxf(total.reference, state[i].x);
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const float weight = weight_of(state[i].x, total.reference);
        state[i].y *= weight;
        total.quantised_sum += state[i].y;
        total.exact_sum += state[i].z * weight;
      }
      const float scale = finish_row(first + n, total, write_lse);
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        if (i < splits) smem.merge_weights[i * rows + n] = state[i].y * scale;
      }
      return;
    }
    constexpr int kSteps = kMaxWorkers / 32;
    const int in_warp = n % 32;
#pragma unroll 1
    for (int r = n / 32; r < rows; r += kMathWarps) {
      float3 state[kSteps];
      RowTotal total{-INFINITY, 0.f, 0.f, 0.f};
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int split = k * 32 + in_warp;
        state[k] = float3{-INFINITY, 0.f, 0.f};
        if (split < splits) {
          const float4 f = __ldcg(&Layout::row_state(params, list.slot[split], rank)[first + r]);
          state[k] = float3{f.x, f.y, f.z};
        }
      }
#pragma unroll
      for (int k = 0; k < kSteps; ++k) total.reference = fmaxf(total.reference, state[k].x);
      total.reference = reduce_warp(total.reference, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const float weight = weight_of(state[k].x, total.reference);
        state[k].y *= weight;
        total.quantised_sum += state[k].y;
        total.exact_sum += state[k].z * weight;
      }
      const auto add = [](float a, float b) { return a + b; };
      total.quantised_sum = reduce_warp(total.quantised_sum, add);
      total.exact_sum = reduce_warp(total.exact_sum, add);
      const float scale = finish_row(first + r, total, write_lse && in_warp == 0);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int split = k * 32 + in_warp;
        if (split < splits) smem.merge_weights[split * rows + r] = state[k].y * scale;
      }
    }
  }

  // Sums the splits from `begin` on, every `step`-th, of kWords words kMathThreads apart. Eight loads are
  // under way at once: what counts is the latency.
  template <int kWords, class List>
  __device__ __forceinline__ void sum_splits(const List& list, int first_word, int rows, int begin, int step,
                                             WordSums (&sums)[kWords]) const {
    constexpr int kAhead = 8 / kWords;
#pragma unroll
    for (WordSums& sum : sums) sum.first = sum.second = float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
    for (int base = begin; base < list.splits; base += kAhead * step) {
      uint4 f[kAhead][kWords];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int split = base + i * step;
        if (split < list.splits) {
          const uint4* src =
              reinterpret_cast<const uint4*>(Layout::acc(params, list.slot[split], rank)) + first_word;
#pragma unroll
          for (int w = 0; w < kWords; ++w) f[i][w] = __ldcg(src + w * kMathThreads);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int split = base + i * step;
        if (split >= list.splits) break;
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const int word = first_word + w * kMathThreads;
          const float2 weights = *reinterpret_cast<const float2*>(
              smem.merge_weights + split * rows + word / kGroupWords * 8 % rows + 2 * (word % 4));
          sums[w].add(f[i][w], weights.x, weights.y);
        }
      }
    }
  }

  __device__ __forceinline__ void write_word(int word, const WordSums& sums) const {
    const int block = word % kGroupWords / kMathThreads * 2, t = word % kMathThreads;
    const int row = word / kGroupWords * 8 + 2 * (t % 4);
    const int column =
        t / kGroupThreads * kGroupColumns + block * 64 + t % kGroupThreads / 32 * 16 + t % 32 / 4 * 2;
    const auto write = [&](int r, float a, float b, float c, float d) {
      if (smem.q_offset[r] < 0) return;
      auto* dst = reinterpret_cast<uint32_t*>(params.out + smem.out_offset[r] + column * sizeof(uint16_t));
      dst[0] = ptx::cvt_bf16x2(a, b);
      dst[64 / 2] = ptx::cvt_bf16x2(c, d);
    };
    write(row, sums.first.x, sums.first.z, sums.second.x, sums.second.z);
    write(row + 1, sums.first.y, sums.first.w, sums.second.y, sums.second.w);
  }

  template <class List>
  __device__ __forceinline__ void merge_slice(const List& list, int slice, int slices) {
    const int words = kRowGroups * kGroupWords / slices;
    const int first = slice * words;
    const int rows = max(words / kGroupWords, 1) * 8;
    const int n = ptx::thread_id();
    MLA_MARK(kSliceTaken);
    weigh_splits(list, first / kGroupWords * 8, rows, first % kGroupWords == 0);
    sync();
    MLA_MARK(kSlicesWeighed);
    if (words >= 4 * kMathThreads) {
#pragma unroll 1
      for (int word = first + n; word < first + words; word += 4 * kMathThreads) {
        WordSums sums[4];
        sum_splits(list, word, rows, 0, 1, sums);
#pragma unroll
        for (int w = 0; w < 4; ++w) write_word(word + w * kMathThreads, sums[w]);
      }
      return;
    }
    const int parts = words < kMathThreads ? kMathThreads / words : 1;  // of the splits
    const int lanes = kMathThreads / parts;
#pragma unroll 1
    for (int word = first + n % lanes; word < first + words; word += lanes) {
      WordSums sums[1];
      sum_splits(list, word, rows, n / lanes, parts, sums);
      if (parts > 1) {
        reinterpret_cast<WordSums*>(&smem.q)[n] = sums[0];
        sync();
        if (n >= lanes) break;
        for (int i = 1; i < parts; ++i) {
          const WordSums other = reinterpret_cast<WordSums*>(&smem.q)[i * lanes + n];
          sums[0].first.x += other.first.x;
          sums[0].first.y += other.first.y;
          sums[0].first.z += other.first.z;
          sums[0].first.w += other.first.w;
          sums[0].second.x += other.second.x;
          sums[0].second.y += other.second.y;
          sums[0].second.z += other.second.z;
          sums[0].second.w += other.second.w;
        }
      }
      write_word(word, sums[0]);
    }
  }
};

}  // namespace mla::hopper

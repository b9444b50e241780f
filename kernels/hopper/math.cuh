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
// several lanes): value i of lane l is the one of index first_of(l) + i.
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

struct MathWarp {
  static constexpr int kGroups = kCtaRows / 8;                    // of eight rows, a fragment each
  static constexpr int kColumns = 2 * kGroups;                    // rows of Q that this thread has scores of
  static constexpr int kLeft = kColumns >= 8 ? kColumns / 8 : 1;  // of them after reduce_columns

  const DecodeParams& params;
  Smem& smem;
  Smem::Group& own;
  const int rank;   // CTA of the cluster
  const int group;  // math group
  const int warp;   // of the group
  const int lane;
  const int member;  // thread of the group
  const int quad;    // lane % 4: rows 8 j + 2 quad + {0, 1}
  float scale;       // of raw scores to log2; positive (a negative one is in the sign of Q)
  uint32_t q_sign = 0;

  float acc[kBlocks][kCtaRows / 2];
  float s[kCtaRows / 2];   // scores of a tile; then the product of a block
  float sum_exact[kLeft];  // of P over this warp, relative to rows[].level; row left_row(i)
  float sum_quantised[2];  // of this group's P as quantised, relative to rows[].acc_level; rows 8 (lane / 4)
                           // + ...

  bool needs_reference = true;  // of P, for the next tile of this group
  bool aligned = false;         // this group's levels are those that the piece began with
  bool acc_aligned = false;     // the accumulators' are

  // Tiles of this CTA so far, which stage and phase of the rings follow from.
  uint32_t tiles_before = 0;
  uint32_t own_messages = 0;      // P tiles of this group so far
  uint32_t partner_messages = 0;  // of the other group

  __device__ __forceinline__ MathWarp(const DecodeParams& p, Smem& sm, int r, int w, int l)
      : params(p),
        smem(sm),
        own(sm.group[w / kGroupWarps]),
        rank(r),
        group(w / kGroupWarps),
        warp(w % kGroupWarps),
        lane(l),
        member(w % kGroupWarps * 32 + l),
        quad(l % 4) {
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

  __device__ __forceinline__ void sync_group() const {
    if (group == 0) {
      ptx::named_barrier(kBarrierGroup0, kGroupThreads);
    } else {
      ptx::named_barrier(kBarrierGroup1, kGroupThreads);
    }
  }
  __device__ __forceinline__ bool any_in_group(bool flag) const {
    return group == 0 ? ptx::named_barrier_or(kBarrierGroup0, kGroupThreads, flag)
                      : ptx::named_barrier_or(kBarrierGroup1, kGroupThreads, flag);
  }
  __device__ __forceinline__ void sync_math() const { ptx::named_barrier(kBarrierMath, kMathThreads); }

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
    }
  }

  __device__ __forceinline__ void load_q() {
    constexpr int kChunks = kHeadDimK / 16;
    for (int i = thread(); i < kCtaRows * kChunks; i += kMathThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int64_t offset = smem.q_offset[row];
      uint4 v{0, 0, 0, 0};
      if (offset >= 0) v = *reinterpret_cast<const uint4*>(params.q + offset + chunk * 16);
      v = uint4{v.x ^ q_sign, v.y ^ q_sign, v.z ^ q_sign, v.w ^ q_sign};
      uint8_t* dst = chunk < kPanels * 8
                         ? smem.q.latent[chunk / 8] + row * kPanel + (((chunk % 8) ^ (row & 7)) << 4)
                         : smem.q.rope + row * kRope + (((chunk - kPanels * 8) ^ ((row >> 1) & 3)) << 4);
      *reinterpret_cast<uint4*>(dst) = v;
    }
    ptx::fence_proxy_async();
  }

  // What sums and accumulators are relative to (log2) need not be the maximum: float has exponents
  // enough, and what does not move costs nothing. The first reference stays until one is far above it.
  static __device__ __forceinline__ float follow(float level, float reference) {
    const bool first = level == kNoLevel && reference > -INFINITY;
    return first || reference > level + kHeadroom ? reference : level;
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

  // Maximum of each row over the tile, in own.warp_max, a part for each warp.
  __device__ __forceinline__ void store_maxima() {
    float m[kColumns];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      m[2 * j] = fmaxf(s[4 * j], s[4 * j + 2]);
      m[2 * j + 1] = fmaxf(s[4 * j + 1], s[4 * j + 3]);
    }
    reduce_columns(m, lane, [](float a, float b) { return fmaxf(a, b); });
    store_reduced(own.warp_max[warp], m);
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

  // Computes P of one of this group's tiles, or its second part, and sends it to both groups.
  __device__ __forceinline__ void produce(const Item& item, int tile_in_piece, uint32_t stage, bool second) {
    scores(ptx::smem_addr(&smem.kv[stage]));
    const int tile = item.first_tile + tile_in_piece;
    const int tile_begin = tile * kTileTokens;
    const uint32_t bad = smem.bad_chunks[stage];
    if (bad != 0 || tile_begin + kTileTokens > item.visible_first || scale == 1) mask(tile_begin, bad);

    const uint32_t buffer = own_messages % kPStages;
    Smem::Message& message = smem.messages[group][buffer];
    ptx::mbarrier_wait(ptx::smem_addr(&smem.p_empty[group][buffer]), (own_messages / kPStages & 1) ^ 1);

    // Most tiles go with the reference of the ones before. A new one is found if a score is above it, or
    // if the last tile was far below.
    bool more = false;
    if (any_in_group(second || needs_reference || above_limit())) {
      more = find_reference(tile, tile_in_piece, second);
      needs_reference = false;
    }
    if (member < kCtaRows) {
      message.reference[member] = own.rows[member].reference;
      message.weight[member] = own.scaling[member].y;
    }
    if (member == 0) {
      message.more = more;
      message.aligned = aligned;
    }
    store_p(ptx::smem_addr(smem.p[group][buffer]), second);
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_addr(&smem.p_full[group][buffer]));
  }

  __device__ __forceinline__ bool above_limit() const {
    bool above = false;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 limit = *reinterpret_cast<const float2*>(&own.limit[8 * j + 2 * quad]);
      above |= fmaxf(s[4 * j], s[4 * j + 2]) > limit.x;
      above |= fmaxf(s[4 * j + 1], s[4 * j + 3]) > limit.y;
    }
    return above;
  }

  // Chooses the references of the rows by the maxima of a tile. Where one token may rule the tile (its
  // the first of the sequence, or with a maximum far above those before), the tokens far below it are left to
  // a second part, with a reference of their own: they would be lost in the rounding, and matter if the value
  // of the one is small (attention sinks). Returns whether there is such a part.
  __device__ __forceinline__ bool find_reference(int tile, int tile_in_piece, bool second) {
    if (second) {
      each_below_threshold([](float&) {}, [](float& score) { score = -INFINITY; });
    }
    store_maxima();
    const bool first = tile_in_piece < kMathGroups && !second;
    if (first && group == 1) {  // both groups begin with the levels of the first tile
      ptx::mbarrier_wait(ptx::smem_addr(&smem.p_full[0][partner_messages % kPStages]),
                         partner_messages / kPStages & 1);
    }
    sync_group();
    bool raised = false, rules = false, unlike = false;
    if (member < kCtaRows) {
      float raw = own.warp_max[0][member];
#pragma unroll
      for (int w = 1; w < kGroupWarps; ++w) raw = fmaxf(raw, own.warp_max[w][member]);
      const float max = raw * scale;
      // Each row by itself: what becomes of it does not depend on the other rows of the tile.
      Smem::RowLevels row = own.rows[member];
      const bool wanted = second || first || max > row.reference || row_was_far_below(member);
      if (wanted && max > -INFINITY) {
        rules = !second && (tile == 0 || max > row.highest + kFall);
        row.highest = fmaxf(row.highest, max);
        row.reference = max + kMargin;  // after a ruling token and its tile's second part: that of the others
      }
      if (!second) own.threshold[member] = rules ? raw - kSpread / scale : -INFINITY;
      if (first) {
        const float common =
            group == 0 ? row.reference : smem.messages[0][partner_messages % kPStages].reference[member];
        if (common > -INFINITY) row.level = row.acc_level = common;
        unlike = !(common > -INFINITY);
      }
      const float level = follow(row.level, row.reference);
      raised = level != row.level;
      own.raise[member] = ptx::ex2(row.level - level);
      row.level = level;
      own.rows[member] = row;
      const bool none = row.reference == -INFINITY;
      own.scaling[member] =
          float2{kLog2PMax - (none ? 0.f : row.reference), none ? 0.f : ptx::ex2(row.reference - level)};
      own.limit[member] = row.reference / scale;
    }
    if (first)
      aligned = acc_aligned = group == 0 || smem.messages[0][partner_messages % kPStages].aligned != 0;
    if (any_in_group(raised || unlike)) {
#pragma unroll
      for (int i = 0; i < kLeft; ++i) sum_exact[i] *= own.raise[left_row(i)];
      aligned = false;
      if (first) acc_aligned = false;
    }
    if (second || !any_in_group(rules)) return false;
    bool low = false;  // are there tokens that it would save
    each_below_threshold([&](float& score) { low |= score > -INFINITY; }, [](float&) {});
    if (!any_in_group(low)) return false;
    each_below_threshold([](float& score) { score = -INFINITY; }, [](float&) {});
    return true;
  }

  template <class Below, class Other>
  __device__ __forceinline__ void each_below_threshold(const Below& below, const Other& other) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 threshold = *reinterpret_cast<const float2*>(&own.threshold[8 * j + 2 * quad]);
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
  __device__ __forceinline__ void store_p(uint32_t p, bool second) {
    uint32_t words[kGroups];  // {row 2 quad: tokens, row 2 quad + 1: tokens}
    float sums[kColumns];
    uint32_t high = 0;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float4 scaling = *reinterpret_cast<const float4*>(&own.scaling[8 * j + 2 * quad]);
      const float shift[2] = {scaling.x, scaling.z}, weight[2] = {scaling.y, scaling.w};
      uint16_t pairs[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float a = ptx::ex2(fmaf(s[4 * j + e], scale, shift[e])),
                    b = ptx::ex2(fmaf(s[4 * j + 2 + e], scale, shift[e]));
        sums[2 * j + e] = (a + b) * weight[e];
        pairs[e] = ptx::cvt_e4m3x2(a, b);
      }
      words[j] = pairs[0] | static_cast<uint32_t>(pairs[1]) << 16;
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
    for (int i = 0; i < kLeft; ++i) sum_exact[i] += sums[i];
#pragma unroll
    for (int mask = 4; mask <= 16; mask *= 2) high |= __shfl_xor_sync(0xffffffff, high, mask);
    if (lane < 4 && !second) own.high[quad][warp] = high;
  }

  __device__ __forceinline__ bool row_was_far_below(int row) const {
    const uint4 high = *reinterpret_cast<const uint4*>(own.high[row % 8 / 2]);
    return !((high.x | high.y | high.z | high.w) >> (row / 8 + row % 2 * 16) & 1);
  }

  // Whether a row of the tile before lay far below its reference; to be asked after a barrier.
  __device__ __forceinline__ bool was_far_below() const {
    const uint4 high = *reinterpret_cast<const uint4*>(own.high[quad]);
    constexpr uint32_t kAll = ((1u << kGroups) - 1) * 0x10001u;
    return (high.x | high.y | high.z | high.w) != kAll;
  }

  // ---- O ---------------------------------------------------------------------------------------

  // Bytes of a fragment word (tokens base + {0, 8, 1, 9}) that anyone may see: 0 times a NaN of the
  // last page's tail would not be 0.
  __device__ __forceinline__ uint32_t visible_bytes(int base, int visible_in_tile) const {
    uint32_t bytes = 0;
    if (base < visible_in_tile) bytes |= 0x000000ffu;
    if (base + 8 < visible_in_tile) bytes |= 0x0000ff00u;
    if (base + 1 < visible_in_tile) bytes |= 0x00ff0000u;
    if (base + 9 < visible_in_tile) bytes |= 0xff000000u;
    return bytes;
  }

  // The first token of a tile in [begin, end) of which this warp's columns of V hold a NaN; `end` if
  // there is none.
  __device__ __forceinline__ int first_nan(uint32_t tile_addr, int begin, int end) const {
    const int column =
        group * kGroupColumns + lane % 16 / 4 * 64;  // half a warp for a token, four lanes a block
    const uint32_t panel = tile_addr + column / kPanel * kPanelBytes;
    const uint32_t chunk = column % kPanel / 16 + warp;
    for (int first = begin; first < end; first += 2) {
      const int token = min(first + lane / 16, end - 1);
      const uint32_t word =
          ptx::ld_shared(panel + token * kPanel + ((chunk ^ (token & 7)) << 4) + lane % 4 * 4);
      // 0x7f and 0xff are the NaN of e4m3.
      const uint32_t found =
          __ballot_sync(0xffffffff, (((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080) != 0);
      if (found != 0) return (found & 0xffff) != 0 ? first : first + 1;
    }
    return end;
  }

  // Tokens that the last row of the row tile sees and the first does not. A row that does not see a
  // token has P 0 for it, but 0 times a NaN of its value would be NaN. Where there is such a NaN,
  // this makes NaN of the rows that see it, which need nothing of what follows it, either. Returns the
  // tokens to multiply.
  __device__ __forceinline__ int poison_rows(uint32_t tile_addr, int tile_begin, int begin, int end) {
    const int clean = first_nan(tile_addr, begin, end);
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

  // V of a block of 64 columns by 32 tokens, as transposed pairs of columns. `row` is the address of token
  // lane.
  __device__ __forceinline__ void load_v(uint32_t (&r)[4], uint32_t row, int block, int step) const {
    const int column = group * kGroupColumns + block * 64;
    const uint32_t chunk = column % kPanel / 16 + warp;
    ptx::ldmatrix_x4_trans(
        r, row + column / kPanel * kPanelBytes + step * 32 * kPanel + ((chunk ^ (lane & 7)) << 4));
  }

  // The fragment of V^T: row r is column 2 r of the block, row r + 8 column 2 r + 1.
  template <bool kMasked>
  __device__ __forceinline__ void transpose_v(uint32_t (&a)[4], const uint32_t (&r)[4], int step,
                                              int visible_in_tile) const {
    a[0] = __byte_perm(r[0], r[1], 0x6240);
    a[1] = __byte_perm(r[0], r[1], 0x7351);
    a[2] = __byte_perm(r[2], r[3], 0x6240);
    a[3] = __byte_perm(r[2], r[3], 0x7351);
    if constexpr (kMasked) {
      const uint32_t low = visible_bytes(step * 32 + quad * 2, visible_in_tile);
      const uint32_t high = visible_bytes(step * 32 + 16 + quad * 2, visible_in_tile);
      a[0] &= low;
      a[1] &= low;
      a[2] &= high;
      a[3] &= high;
    }
  }

  // kMasked: the tile's tokens from visible_in_tile on are left out.
  //
  // The tensor core keeps few bits of a long sum; a tile's is short, and goes on in float. The products
  // are of up to 32 rows, so that one is added while the next is computed. What a step needs is loaded a
  // step before, behind the products under way.
  template <bool kMasked>
  __device__ __forceinline__ void multiply(uint32_t tile_addr, uint32_t p, const float* weights,
                                           int visible_in_tile) {
    constexpr int kPart = kCtaRows < 32 ? kCtaRows : 32;
    constexpr int kParts = kCtaRows / kPart;
    constexpr int kProducts = kBlocks * kParts;
    const uint32_t b = __shfl_sync(0xffffffff, ptx::wgmma_address(p), 0);  // uniform
    const uint32_t row = tile_addr + lane * kPanel;
    uint32_t raw[2][4], a[2][2][4];
    float product[2][kPart / 2];
    float2 weight[kPart / 8];
    const auto load = [&](int block) {
      load_v(raw[0], row, block, 0);
      load_v(raw[1], row, block, 1);
    };
    const auto transpose = [&](int block) {
      transpose_v<kMasked>(a[block % 2][0], raw[0], 0, visible_in_tile);
      transpose_v<kMasked>(a[block % 2][1], raw[1], 1, visible_in_tile);
    };
    const auto load_weights = [&](int part) {
#pragma unroll
      for (int j = 0; j < kPart / 8; ++j) {
        weight[j] = *reinterpret_cast<const float2*>(&weights[part * kPart + 8 * j + 2 * quad]);
      }
    };
    const auto add = [&](int index) {
      const int block = index / kParts, part = index % kParts;
#pragma unroll
      for (int j = 0; j < kPart / 8; ++j) {
        float* to = &acc[block][part * kPart / 2 + 4 * j];
        const float* from = &product[index % 2][4 * j];
        to[0] = fmaf(from[0], weight[j].x, to[0]);
        to[1] = fmaf(from[1], weight[j].y, to[1]);
        to[2] = fmaf(from[2], weight[j].x, to[2]);
        to[3] = fmaf(from[3], weight[j].y, to[3]);
      }
    };
    load(0);
    transpose(0);
    if constexpr (kParts == 1) load_weights(0);
#pragma unroll
    for (int index = 0; index < kProducts; ++index) {
      const int block = index / kParts, part = index % kParts;
      ptx::pin(product[index % 2]);
      ptx::wgmma_fence();
      const uint32_t b_part = b + part * kPart * kTileTokens / 16;
      ptx::wgmma_rs<kTileTokens>(product[index % 2], a[block % 2][0], b_part, 0);
      ptx::wgmma_rs<kTileTokens>(product[index % 2], a[block % 2][1], b_part + 2, 1);
      ptx::wgmma_commit();
      if (part == 0 && block + 1 < kBlocks) load(block + 1);
      if (index > 0) {
        if constexpr (kParts > 1) load_weights((index - 1) % kParts);
        ptx::wgmma_wait<1>();
        ptx::pin(product[(index - 1) % 2]);
      }
      if (part == 0 && block + 1 < kBlocks) transpose(block + 1);
      if (index > 0) add(index - 1);
    }
    if constexpr (kParts > 1) load_weights(kParts - 1);
    ptx::wgmma_wait<0>();
    ptx::pin(product[(kProducts - 1) % 2]);
    add(kProducts - 1);
  }

  // The sums of P as quantised normalise the output, so that the scale and part of the rounding cancel.
  // The tensor core adds them up: a product with ones has them in every row.
  __device__ __forceinline__ void add_sums(uint32_t p, const float* weights) {
    const uint32_t b = __shfl_sync(0xffffffff, ptx::wgmma_address(p), 0);
    constexpr uint32_t kOnes[4] = {0x38383838, 0x38383838, 0x38383838, 0x38383838};
    ptx::pin(s);
    ptx::wgmma_fence();
    ptx::wgmma_rs<kTileTokens>(s, kOnes, b, 0);
    ptx::wgmma_rs<kTileTokens>(s, kOnes, b + 2, 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    const int mine = lane / 4 % kGroups;
    float2 sum{s[0], s[1]};
#pragma unroll
    for (int j = 1; j < kGroups; ++j) {
      if (mine == j) sum = float2{s[4 * j], s[4 * j + 1]};
    }
    const float2 weight = *reinterpret_cast<const float2*>(&weights[8 * mine + 2 * quad]);
    sum_quantised[0] = fmaf(sum.x, weight.x, sum_quantised[0]);
    sum_quantised[1] = fmaf(sum.y, weight.y, sum_quantised[1]);
  }

  __device__ __forceinline__ void scale_acc(const float (&factors)[kCtaRows]) {
    const float2 own_factor = *reinterpret_cast<const float2*>(&factors[8 * (lane / 4 % kGroups) + 2 * quad]);
    sum_quantised[0] *= own_factor.x;
    sum_quantised[1] *= own_factor.y;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * j + 2 * quad]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        acc[block][4 * j] *= factor.x;
        acc[block][4 * j + 1] *= factor.y;
        acc[block][4 * j + 2] *= factor.x;
        acc[block][4 * j + 3] *= factor.y;
      }
    }
  }

  // The weights of a P tile relative to the accumulators' levels, which may move.
  __device__ __forceinline__ const float* find_weights(const Smem::Message& message) {
    // Two tables in turn: a slow warp may still read that of the tile before.
    const uint32_t table = (own_messages + partner_messages) % 2;
    bool raised = false;
    if (member < kCtaRows) {
      const float reference = message.reference[member];
      const float before = own.rows[member].acc_level, level = follow(before, reference);
      raised = level != before;
      own.rescale[table][member] = ptx::ex2(before - level);
      own.fold[table][member] = reference == -INFINITY ? 0.f : ptx::ex2(reference - level);
      own.rows[member].acc_level = level;
    }
    if (any_in_group(raised)) {
      scale_acc(own.rescale[table]);
      acc_aligned = false;
    }
    return own.fold[table];
  }

  // Takes the next P tile of this group or the other one. Returns whether the tile has a second part.
  __device__ __forceinline__ bool consume(const Item& item, bool is_own, int tile_in_piece, uint32_t stage) {
    const int from = is_own ? group : group ^ 1;
    const uint32_t number = is_own ? own_messages : partner_messages;
    const uint32_t buffer = number % kPStages;
    const Smem::Message& message = smem.messages[from][buffer];
    ptx::mbarrier_wait(ptx::smem_addr(&smem.p_full[from][buffer]), number / kPStages & 1);
    const bool more = message.more != 0;
    const float* weights = message.weight;
    if (!(acc_aligned && message.aligned != 0)) weights = find_weights(message);
    const int tile_begin = (item.first_tile + tile_in_piece) * kTileTokens;
    const int visible_in_tile = min(item.visible - tile_begin, kTileTokens);
    const int seen_by_all = max(item.visible_first - tile_begin, 0);
    const uint32_t tile_addr = ptx::smem_addr(&smem.kv[stage]), p = ptx::smem_addr(smem.p[from][buffer]);
    if (is_own) {
      add_sums(p, weights);
      needs_reference = was_far_below();  // after p_full: all warps have written
    }
    if (seen_by_all >= kTileTokens) {
      multiply<false>(tile_addr, p, weights, 0);
    } else {
      multiply<true>(tile_addr, p, weights, poison_rows(tile_addr, tile_begin, seen_by_all, visible_in_tile));
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_addr(&smem.p_empty[from][buffer]));
    own_messages += is_own;
    partner_messages += !is_own;
    return more;
  }

  // ---- items -----------------------------------------------------------------------------------

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kCtaRows / 2; ++i) acc[block][i] = 0.f;
    }
  }

  // Waits for the tile of the given number in this piece of an item; its stage.
  __device__ __forceinline__ uint32_t wait_tile(int tile) const {
    const uint32_t number = tiles_before + tile;
    const uint32_t stage = number % kStages;
    ptx::mbarrier_wait(ptx::smem_addr(&smem.full[stage]), number / kStages & 1);
    return stage;
  }

  __device__ __forceinline__ void release(uint32_t stage) const {
    __syncwarp();
    const uint32_t empty = ptx::smem_addr(&smem.empty[stage]);
    if constexpr (kClusterSize > 1) {
      if (lane < kClusterSize) ptx::mbarrier_arrive_remote(ptx::mapa(empty, lane));
    } else {
      if (lane == 0) ptx::mbarrier_arrive(empty);
    }
  }

  __device__ __forceinline__ void run() {
    for (ItemReader items(smem.queue, lane); items.next();) {
      const Item& item = items.item();
      sync_math();  // the item before is done with the rows
      prepare_rows(item);
      sync_math();
      if (item.tiles > 0) load_q();
      clear();
#pragma unroll
      for (int i = 0; i < kLeft; ++i) sum_exact[i] = 0.f;
      sum_quantised[0] = sum_quantised[1] = 0.f;
      if (member < kCtaRows) own.rows[member] = Smem::RowLevels{-INFINITY, -INFINITY, kNoLevel, kNoLevel};
      needs_reference = true;
      acc_aligned = false;
      sync_math();

      // Own tile, other group's tile, own tile, ... One copy of each step's code: registers are short.
      const int count = item.last_tile - item.first_tile;
      int tile = group;  // within the piece
      bool second = false;
      for (int left = count; left > 0;) {
        if (tile >= count) {  // the last pair lacks the other tile
          tile ^= 1;
          continue;
        }
        const uint32_t stage = wait_tile(tile);
        const bool is_own = tile % kMathGroups == group;
        if (is_own) produce(item, tile, stage, second);
        second = consume(item, is_own, tile, stage) && !second;
        if (second) continue;
        release(stage);
        --left;
        tile = is_own ? tile ^ 1 : (tile & ~1) + kMathGroups + group;
      }
      tiles_before += count;
      finish_sums();
      const bool last = item.tiles == 0 || item.whole() ||
                        merge_item<Layout>(rule(), params, *this, smem.splits, smem.queue.line, item,
                                           static_cast<int>(ptx::clusterid_x()), rank);
      if (last) write_output(item);
    }
  }

  // The totals of every row over both groups, in smem.totals.
  __device__ __forceinline__ void finish_sums() {
    store_reduced(own.warp_sum[warp], sum_exact);
    if (warp == 0 && lane / 4 < kGroups) {  // every warp has them
      *reinterpret_cast<float2*>(&own.sum_quantised[8 * (lane / 4) + 2 * quad]) =
          float2{sum_quantised[0], sum_quantised[1]};
    }
    sync_math();
    if (member < kCtaRows) {
      const float top = fmaxf(smem.group[0].rows[member].level, smem.group[1].rows[member].level);
      own.fold[0][member] = ptx::ex2(own.rows[member].acc_level - top);
      if (group == 0) {
        RowTotal total{top == kNoLevel ? -INFINITY : top, 0.f, 0.f, 0.f};
#pragma unroll
        for (int g = 0; g < kMathGroups; ++g) {
          const Smem::Group& part = smem.group[g];
          total.quantised_sum += part.sum_quantised[member] * ptx::ex2(part.rows[member].acc_level - top);
          const float weight = ptx::ex2(part.rows[member].level - top);
#pragma unroll
          for (int w = 0; w < kGroupWarps; ++w) total.exact_sum += part.warp_sum[w][member] * weight;
        }
        smem.totals[member] = total;
      }
    }
    sync_math();
    scale_acc(own.fold[0]);
  }

  __device__ __forceinline__ void write_output(const Item& item) {
    const int n = thread();
    if (n < kCtaRows) {
      const RowTotal total = smem.totals[n];
      // No token at all; a NaN among the scores leaves the maximum alone, but not the sums.
      const bool empty = total.reference == -INFINITY && total.exact_sum == 0.f;
      smem.scale[n] = empty ? 0.f : __fdividef(load_kv_scale(params), total.quantised_sum);
      if (params.lse != 0 && smem.q_offset[n] >= 0) {
        constexpr float kLn2 = 0.6931471805599453f;
        reinterpret_cast<float*>(params.lse)[smem.lse_offset[n]] =
            empty ? -INFINITY : kLn2 * (total.reference - kLog2PMax + ptx::lg2(total.exact_sum));
      }
    }
    sync_math();
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

  // ---- split items (merge_item) ------------------------------------------------------------------

  __device__ __forceinline__ void sync() const { sync_math(); }
  __device__ __forceinline__ int thread() const { return group * kGroupThreads + member; }

  __device__ __forceinline__ void store_partial(int slot) const {
    const int n = thread();
    float4* dst = Layout::acc(params, slot, rank) + n;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const auto& a = acc[block];
        dst[(block * kGroups + j) * kMathThreads] =
            float4{a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3]};
      }
    }
    if (n < kCtaRows) {
      const RowTotal total = smem.totals[n];
      Layout::row_state(params, slot, rank)[n] =
          float4{total.reference, total.quantised_sum, total.exact_sum, 0.f};
    }
  }

  template <class Slots>
  __device__ __forceinline__ void load_merged(const Slots& slots) {
    clear();
    const int n = thread();
    float top = -INFINITY;
    if (member < kCtaRows) {
      for (int i = 0; i < slots.count; ++i) {
        top = fmaxf(top, __ldcg(&Layout::row_state(params, slots[i], rank)[member].x));
      }
    }
    RowTotal total{top, 0.f, 0.f, 0.f};
    for (int i = 0; i < slots.count; ++i) {
      if (member < kCtaRows) {
        const float4 state = __ldcg(&Layout::row_state(params, slots[i], rank)[member]);
        const float weight = top == -INFINITY ? 1.f : ptx::ex2(state.x - top);
        total.quantised_sum += state.y * weight;
        total.exact_sum += state.z * weight;
        own.fold[i % 2][member] = weight;
      }
      sync_group();  // two tables in turn, so that one barrier is enough
      const float* weights = own.fold[i % 2];
      const float4* src = Layout::acc(params, slots[i], rank) + n;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          const float4 f = __ldcg(&src[(block * kGroups + j) * kMathThreads]);
          const float2 weight = *reinterpret_cast<const float2*>(&weights[8 * j + 2 * quad]);
          acc[block][4 * j] = fmaf(f.x, weight.x, acc[block][4 * j]);
          acc[block][4 * j + 1] = fmaf(f.y, weight.y, acc[block][4 * j + 1]);
          acc[block][4 * j + 2] = fmaf(f.z, weight.x, acc[block][4 * j + 2]);
          acc[block][4 * j + 3] = fmaf(f.w, weight.y, acc[block][4 * j + 3]);
        }
      }
    }
    if (n < kCtaRows) smem.totals[n] = total;
    sync_math();
  }
};

}  // namespace mla::hopper

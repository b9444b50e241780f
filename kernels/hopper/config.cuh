// SPDX-License-Identifier: Apache-2.0
//
// Constants of the Hopper family: roles, rings, shared memory.
#pragma once

#include <cstdint>

#include "kernels/common/merge.cuh"
#include "kernels/common/mla_params.h"
#include "kernels/common/work.cuh"
#include "kernels/hopper/quantisation.h"

#ifndef MLA_ROWS
#define MLA_ROWS 64
#endif

namespace mla::hopper {

inline constexpr int kHeadDimK = 576;
inline constexpr int kHeadDimV = 512;
inline constexpr int kRows = MLA_ROWS;                    // of a row tile
inline constexpr int kCtaRows = kRows < 64 ? kRows : 64;  // rows are the N dimension of the products
inline constexpr int kClusterSize = kRows / kCtaRows;     // CTAs that share the KV tiles by multicast
static_assert(kRows == 16 || kRows == 32 || kRows == 64 || kRows == 128, "row tile");

// kMathGroups warpgroups compute; of another one, one warp loads and one schedules.
inline constexpr int kGroupWarps = 4;
inline constexpr int kGroupThreads = kGroupWarps * 32;
inline constexpr int kMathWarps = kMathGroups * kGroupWarps;
inline constexpr int kMathThreads = kMathWarps * 32;
inline constexpr int kLoaderWarp = kMathWarps;
inline constexpr int kSchedulerWarp = kMathWarps + 1;
inline constexpr int kThreads = kMathThreads + kGroupThreads;

inline constexpr int kEntryRegisters = 168;
inline constexpr int kMathRegisters = 232;
inline constexpr int kIoRegisters = 40;
static_assert(kMathGroups * kMathRegisters + kIoRegisters <= 3 * kEntryRegisters,
              "setmaxnreg may not ask for more than the CTA has");

// The schedule: mla_schedule.h.
inline constexpr int kItemOverhead = 3;
inline constexpr int kMinShare = 2;
inline constexpr int kMaxFlatMerge = 8;
__device__ __forceinline__ constexpr ScheduleRule rule() {
  return {kRows, kTileTokens, kItemOverhead, kMinShare, kMaxFlatMerge};
}
// Nanoseconds of a tile on an H200 times the SMs it occupies (docs/hopper-log.md).
inline constexpr uint32_t kTileCost = kRows == 16 ? 1300 : kRows == 32 ? 1600 : kRows == 64 ? 2400 : 4700;

// A KV tile: the latent part in panels of 128 columns, which are keys and values, then the rope part.
inline constexpr int kPanel = 128;
inline constexpr int kPanels = kHeadDimV / kPanel;
inline constexpr int kRope = kHeadDimK - kHeadDimV;
inline constexpr int kPanelBytes = kTileTokens * kPanel;
inline constexpr int kRopeBytes = kTileTokens * kRope;
struct Tile {
  alignas(1024) uint8_t latent[kPanels][kPanelBytes];
  alignas(1024) uint8_t rope[kRopeBytes];
};
inline constexpr int kTileBytes = sizeof(Tile);
static_assert(kTileBytes == kTileTokens * kHeadDimK, "no padding");
inline constexpr int kStages = kCtaRows == 64 ? 4 : 5;

// Q in the same panels.
struct Queries {
  alignas(1024) uint8_t latent[kPanels][kCtaRows * kPanel];
  alignas(1024) uint8_t rope[kCtaRows * kRope];
};

// P of a tile: a row of 64 bytes for each row of Q. Every math group writes its own tiles' and both
// read all, so that one may be a tile ahead of the other.
inline constexpr int kPStages = 2;

// Each math group holds 256 columns of the output, in blocks of 64.
inline constexpr int kGroupColumns = kHeadDimV / kMathGroups;
inline constexpr int kBlocks = kGroupColumns / 64;

// Sums and accumulators are relative to a level that moves when a reference is this far above it (log2);
// kNoLevel: no token yet; below all scores, finite so that it has a difference of 0 from itself.
inline constexpr float kHeadroom = 32.f;
inline constexpr float kNoLevel = -3e38f;

inline constexpr int kMaxWorkers = 512;
using Layout = PartialLayout<kMaxWorkers, kClusterSize, kCtaRows, kMathThreads, kBlocks * kCtaRows / 8>;
using Queue = ItemQueue<4, kMathWarps + 1>;

// Named barriers; 0 is __syncthreads.
enum Barrier : uint32_t { kBarrierGroup0 = 1, kBarrierGroup1 = 2, kBarrierMath = 3 };

struct RowTotal {
  float reference, quantised_sum, exact_sum, unused;
};

struct Smem {
  Tile kv[kStages];
  Queries q;
  alignas(1024) uint8_t p[kMathGroups][kPStages][kCtaRows * kTileTokens];

  // What goes with a P tile.
  struct Message {
    alignas(16) float reference[kCtaRows];  // log2, what the largest e4m3 value stands for; -inf: no token
    alignas(16) float weight[kCtaRows];     // of P: 2 to (reference - level of the sender)
    int32_t more;                           // the tile has a second part
    int32_t aligned;                        // the sender's levels are those that the piece began with
  } messages[kMathGroups][kPStages];

  // What a group knows of a row so far, in log2. Thread n of the group keeps it for row n.
  struct alignas(16) RowLevels {
    float reference;  // of P
    float highest;    // maximum of the group's tiles
    float level;      // the group's exact sums are relative to it
    float acc_level;  // accumulators and quantised sums are
  };

  // A group's own, by row.
  struct Group {
    RowLevels rows[kCtaRows];
    alignas(16) float warp_max[kGroupWarps][kCtaRows];
    alignas(16) float2 scaling[kCtaRows];   // {shift of scores, weight of P}
    alignas(16) float raise[kCtaRows];      // factor of the sums so far
    alignas(16) float threshold[kCtaRows];  // scores below it are left to the second part
    alignas(16) float limit[kCtaRows];      // raw scores above it: P saturates, a new reference is needed
    alignas(16) uint32_t
        high[4][kGroupWarps];  // by quad and warp: rows 8 j + 2 quad + e (bit j + 16 e) near their reference
    alignas(16) float fold[2][kCtaRows];       // weight of a P tile's product
    alignas(16) float rescale[2][kCtaRows];    // factor of the accumulators so far
    float warp_sum[kGroupWarps][kCtaRows];     // exact, relative to rows[].level
    alignas(8) float sum_quantised[kCtaRows];  // relative to rows[].acc_level
  } group[kMathGroups];
  float score_factor;                   // of scores before all else
  alignas(16) float scale[kCtaRows];    // of the output
  alignas(16) int32_t bound[kCtaRows];  // tokens that a row sees
  int64_t q_offset[kCtaRows];           // bytes; < 0: no such row
  int64_t out_offset[kCtaRows];
  int64_t lse_offset[kCtaRows];  // elements
  RowTotal totals[kCtaRows];

  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t p_full[kMathGroups][kPStages];
  uint64_t p_empty[kMathGroups][kPStages];
  uint32_t bad_chunks[kStages];  // of a tile: its pages outside the pool
  Queue queue;
  SplitList<kMaxWorkers> splits;
};

inline constexpr int kDynamicSmem = sizeof(Smem);
static_assert(kDynamicSmem <= 232448, "shared memory of sm_90");

}  // namespace mla::hopper

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

// Two warpgroups compute; of the third, one warp loads and one schedules.
inline constexpr int kMathGroups = kPairTiles;
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
inline constexpr int kItemOverhead = 2;
inline constexpr int kMinShare = 2;
inline constexpr int kMaxFlatMerge = 256;  // all: merged together
__device__ __forceinline__ constexpr ScheduleRule rule() {
  return {kRows, kTileTokens, kItemOverhead, kMinShare, kMaxFlatMerge};
}
// Nanoseconds of a tile on an H200 times the SMs it occupies (docs/hopper-log.md).
inline constexpr uint32_t kTileCost = kRows == 16 ? 1250 : kRows == 32 ? 1270 : kRows == 64 ? 1620 : 3200;

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

// The math groups go through the tiles in pairs, a tile's scores each. Each holds half of the columns of
// the output, in blocks of 64, and multiplies P of both tiles with its columns of V.
inline constexpr int kPairTokens = kMathGroups * kTileTokens;
inline constexpr int kGroupColumns = kHeadDimV / kMathGroups;
inline constexpr int kBlocks = kGroupColumns / 64;

// Splits of an item are at most as many.
inline constexpr int kMaxWorkers = 256;
// Partial accumulators are bf16, each row divided by its sum: eight a word.
using Layout = PartialLayout<kMaxWorkers, kClusterSize, kCtaRows, kMathThreads, kBlocks / 2 * kCtaRows / 8>;
using Queue = ItemQueue<4, kMathWarps + 1>;

enum Barrier : uint32_t { kBarrierMath = 1 };  // named barriers; 0 is __syncthreads

// A merged item goes in slices of equal parts of the accumulators: groups of eight rows, then pairs of
// blocks, then threads (MathWarp::store_partial).
inline constexpr int kRowGroups = kCtaRows / 8;
inline constexpr int kGroupWords = kBlocks / 2 * kMathThreads;  // of eight rows
inline constexpr int kMostSlices = 64;
// Weights of a slice: more splits than rows of a group mean slices of one group.
inline constexpr int kMergeWeights = 8 * kMaxWorkers;
static_assert(kRowGroups * kGroupWords / kMostSlices <= kMathThreads, "the smallest slice");

struct RowTotal {
  float reference, quantised_sum, exact_sum, unused;
};

// What is known of a row so far, in log2. Math thread n keeps it for row n.
struct alignas(16) RowState {
  float reference;  // what the largest e4m3 value of P stands for; sums and accumulators are relative to it
  float highest;    // maximum when a reference was last chosen, or higher ones before
  float top;        // highest reference
  float unused;
};

inline constexpr int kMostPieces = 2;  // of items that a worker starts in the middle of, or leaves unfinished

struct Smem {
  Tile kv[kStages];
  Queries q;
  alignas(1024) uint8_t p[2][kMathGroups][kCtaRows * kTileTokens];  // of two pairs of tiles

  // By row.
  RowState rows[kCtaRows];
  alignas(16) float by_warp[kMathWarps][kCtaRows];  // maxima of a tile; in the end, exact sums
  alignas(16) float shift[kCtaRows];                // of scores, so that the reference becomes kLog2PMax
  alignas(16) float threshold[kCtaRows];            // raw scores below it are left to the second part
  alignas(16) float rescale[kCtaRows];              // factor of sums and accumulators so far
  alignas(16) float scale[kCtaRows];                // of the output
  float score_factor;                               // of scores before all else
  alignas(16) float quantised_sum[kMathGroups][kCtaRows];
  alignas(16) int32_t bound[kCtaRows];  // tokens that a row sees
  int64_t q_offset[kCtaRows];           // bytes; < 0: no such row
  int64_t out_offset[kCtaRows];
  int64_t lse_offset[kCtaRows];  // elements
  RowTotal totals[kCtaRows];
  alignas(16) uint32_t high[2][4][kMathWarps];  // of two pairs, by quad and warp: rows 8 j + 2 quad + e (bit
                                                // j + 16 e) near their reference

  // Of a merge: weights by split and row of the slice. (Sums of parts of the splits lie where Q was.)
  alignas(16) float merge_weights[kMergeWeights];

  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint32_t bad_chunks[kStages];  // of a tile: its pages outside the pool
  Queue queue;

  // Items that this CTA shares with others, to be merged in the end.
  Item pieces[kMostPieces];
  uint64_t splits_full[kMostPieces];  // the scheduler warp has filled the splits
  SplitSlots<kMaxWorkers> splits[kMostPieces];
};

static_assert(sizeof(Smem::q) >= kMathThreads * 32, "sums of a merge");

inline constexpr int kDynamicSmem = sizeof(Smem);
static_assert(kDynamicSmem <= 232448, "shared memory of sm_90");

}  // namespace mla::hopper

// SPDX-License-Identifier: Apache-2.0
//
// Constants of the cluster family: roles, rings, shared memory.
#pragma once

#include <cstdint>

#include "kernels/common/mla_params.h"

#ifndef MLA_ROWS
#define MLA_ROWS 128
#endif
#ifndef MLA_MMA_BLOCK_SCALED
#define MLA_MMA_BLOCK_SCALED 0
#endif

namespace mla::cluster {

inline constexpr int kRows = MLA_ROWS;
inline constexpr bool kBlockScaled = MLA_MMA_BLOCK_SCALED != 0;

// A cluster: two producers (scores and softmax of alternate tiles), two consumers (half of the value
// columns each).
inline constexpr int kProducers = 2;
inline constexpr int kConsumers = 2;
inline constexpr int kClusterSize = kProducers + kConsumers;
inline constexpr int kMathWarps = 8;
inline constexpr int kIoWarps = 4;
inline constexpr int kLoaderWarp = kMathWarps;         // the first I/O warp
inline constexpr int kSchedulerWarp = kMathWarps + 1;  // the second; the others only give registers
inline constexpr int kMathThreads = kMathWarps * 32;
inline constexpr int kThreads = (kMathWarps + kIoWarps) * 32;

// 168 registers at entry for 384 threads; setmaxnreg then moves them from the I/O warps to the math
// warps within the same pool.
inline constexpr int kEntryRegisters = 168;
inline constexpr int kMathRegisters = 232;
inline constexpr int kIoRegisters = 40;
static_assert(kMathWarps * kMathRegisters + kIoWarps * kIoRegisters <=
                  (kMathWarps + kIoWarps) * kEntryRegisters,
              "setmaxnreg may not ask for more than the CTA has");

static_assert(kRows == 16 * kMathWarps, "a producer warp owns the 16 rows of one m16 tile");

// A K tile comes in parts of 64 elements, so that a part is 64 tokens of 64 bytes: 8 rows are 512
// contiguous bytes, which a warp reads as one 16-byte word a lane without bank conflicts.
inline constexpr int kKPart = 64;
inline constexpr int kKParts = kHeadDimK / kKPart;
inline constexpr int kKPartBytes = kTileTokens * kKPart;
inline constexpr int kKStages = 24;
static_assert(kKParts * kKPart == kHeadDimK, "K parts cover a row");

// A V tile comes in parts of 128 columns with the 128-byte swizzle that transposed ldmatrix needs.
inline constexpr int kVPart = 128;
inline constexpr int kVColumns = kHeadDimV / kConsumers;
inline constexpr int kVParts = kVColumns / kVPart;
inline constexpr int kVPartBytes = kTileTokens * kVPart;
inline constexpr int kVStages = 7;

// A P tile, in the order of the A fragments of the consumers' MMA, then a TileRow of each row.
inline constexpr int kPStages = 4;
inline constexpr int kPBytes = kRows * kTileTokens;
inline constexpr int kPMessageBytes = kPBytes + kRows * 16;
static_assert(kPStages % kProducers == 0, "a P stage belongs to one producer");

// P is scaled so that the row maximum becomes the largest e4m3 value.
inline constexpr float kLog2PMax = 8.807354922057604f;  // log2(448)

// Consumer warps: 2 groups of 64 rows by 4 groups of 64 columns.
inline constexpr int kRowGroups = 2;
inline constexpr int kRowTiles = kRows / kRowGroups / 16;  // m16 tiles of a consumer warp
inline constexpr int kColumnBlocks = kVColumns / 4 / 16;   // 16-column blocks of a consumer warp
static_assert(kMathWarps == kRowGroups * 4, "consumer warp grid");

// This worker's share of the batch, in units of mla_schedule.h.
struct Share {
  int32_t request;  // first item: request, token, and its place on the line
  int32_t token;
  int32_t item_begin;
  int32_t begin;  // this worker's units
  int32_t end;
  int32_t length;   // of the whole batch
  int32_t workers;  // that take part
};

// This worker's piece of one item (query token).
struct alignas(16) Item {
  int32_t request;
  int32_t query;       // row of q, out and lse in units of heads
  int32_t visible;     // tokens that the query token sees
  int32_t item_begin;  // on the line of units
  int32_t first_tile;  // the piece
  int32_t last_tile;   // exclusive; <= first_tile: there is no further item
  int32_t tiles;       // of the whole item
  int32_t unused;

  __device__ __forceinline__ bool whole() const { return first_tile == 0 && last_tile == tiles; }
};

// The scheduler warp of each CTA walks the share and hands the items to the other warps.
inline constexpr int kItemStages = 4;
inline constexpr int kItemReaders = kMathWarps + 1;  // and the loader warp
struct ItemQueue {
  Item items[kItemStages];
  uint64_t full[kItemStages];
  uint64_t empty[kItemStages];
  Share share;
};

struct ProducerSmem {
  alignas(1024) uint8_t k[kKStages][kKPartBytes];
  alignas(16) float ring_max[kRows];  // running maximum from the other producer
  uint64_t k_full[kKStages];
  uint64_t k_empty[kKStages];
  uint64_t ring_full[kMathWarps];
  uint64_t p_empty[kPStages / kProducers];
  uint32_t bad_chunks[kKStages];  // at the stage of a tile's first part: its pages outside the pool
  ItemQueue queue;
};

// What a P tile says of a row, as a float4: the factor that brings what came before to the running
// maximum, the sums of the tile's P as quantised and exact, the running maximum (log2).
struct TileRow {
  float factor, quantised_sum, exact_sum, max;
};

// What a consumer knows of a row so far.
struct RowTotal {
  float max, quantised_sum, exact_sum;
};

struct ConsumerSmem {
  alignas(1024) uint8_t v[kVStages][kVPartBytes];
  struct alignas(16) PStage {
    uint4 fragments[kMathWarps][2][32];  // [m16 tile][k32 step][lane]
    alignas(16) TileRow rows[kRows];
  } p[kPStages];
  uint64_t v_full[kVStages];
  uint64_t v_empty[kVStages];
  uint64_t p_full[kPStages];
  RowTotal rows[kRows];
  int32_t last_arriver;
  int32_t splits;
  uint8_t split_workers[kMaxWorkers];  // of the item's splits, in the order of their tiles
  ItemQueue queue;
};

static_assert(kMaxWorkers <= 256, "split_workers");

inline constexpr int kSmemLimit = 101376 - 1024;  // sm_120: 99 KiB a block, less what the system takes
inline constexpr int kDynamicSmem = sizeof(ProducerSmem) > sizeof(ConsumerSmem) ? sizeof(ProducerSmem)
                                                                                : sizeof(ConsumerSmem);
static_assert(kDynamicSmem <= kSmemLimit, "shared memory of sm_120");

}  // namespace mla::cluster

// SPDX-License-Identifier: Apache-2.0
//
// Constants of the cluster family: roles, rings, shared memory.
#pragma once

#include <cstdint>

#include "kernels/common/merge.cuh"
#include "kernels/common/mla_softmax.h"

#ifndef MLA_ROWS
#define MLA_ROWS 128
#endif
#ifndef MLA_MMA_BLOCK_SCALED
#define MLA_MMA_BLOCK_SCALED 0
#endif

namespace mla::cluster {

inline constexpr int kRows = MLA_ROWS;
inline constexpr bool kBlockScaled = MLA_MMA_BLOCK_SCALED != 0;

inline constexpr int kHeadDimK = 576;   // 512 latent + 64 rope
inline constexpr int kHeadDimV = 512;   // the latent part
inline constexpr int kTileTokens = 64;  // of a KV tile

// How the batch is divided (mla_schedule.h).
inline constexpr int kItemOverhead = 2;
inline constexpr int kMinShare = 4;
inline constexpr int kMaxFlatMerge = 8;
MLA_HD constexpr ScheduleRule schedule_rule() {
  return {kRows, kTileTokens, kItemOverhead, kMinShare, kMaxFlatMerge};
}

// A cluster, which is one worker: two producers (scores and softmax of alternate tiles), two
// consumers (a part of the value columns each).
inline constexpr int kProducers = 2;
inline constexpr int kConsumers = 2;
inline constexpr int kClusterSize = kProducers + kConsumers;
inline constexpr int kMathWarps = 8;
inline constexpr int kIoWarps = 4;
inline constexpr int kLoaderWarp = kMathWarps;         // the first I/O warp
inline constexpr int kSchedulerWarp = kMathWarps + 1;  // the second; the others only give registers
inline constexpr int kMathThreads = kMathWarps * 32;
inline constexpr int kThreads = (kMathWarps + kIoWarps) * 32;

// Named barriers of a CTA; 0 is that of __syncthreads.
enum NamedBarrier : uint32_t {
  kMathBarrier = 1,
  kValueBarrier = 2,     // of a consumer, one for each column group: its warps
  kRowGroupBarrier = 4,  // of a producer, one for each row group: its warps
};

// 168 registers at entry for 384 threads; setmaxnreg then moves them from the I/O warps to the math
// warps within the same pool.
inline constexpr int kEntryRegisters = 168;
inline constexpr int kMathRegisters = 232;
inline constexpr int kIoRegisters = 40;
static_assert(kMathWarps * kMathRegisters + kIoWarps * kIoRegisters <=
                  (kMathWarps + kIoWarps) * kEntryRegisters,
              "setmaxnreg may not ask for more than the CTA has");

inline constexpr int kFragmentRows = 16;  // rows of an MMA's A fragment: a lane has two, 8 apart
static_assert(kRows == kFragmentRows * kMathWarps, "a producer warp owns the rows of one fragment");

// A K tile comes in boxes of 64 elements, so that a box is 64 tokens of 64 bytes: 8 rows are 512
// contiguous bytes, which a warp reads as one 16-byte word a lane without bank conflicts.
inline constexpr int kKBox = 64;
inline constexpr int kKBoxes = kHeadDimK / kKBox;
inline constexpr int kKBoxBytes = kTileTokens * kKBox;
inline constexpr int kKSwizzle = 0;
inline constexpr int kKStages = 24;
static_assert(kKBoxes * kKBox == kHeadDimK, "K boxes cover a row");

// A V tile comes in boxes of 128 columns with the 128-byte swizzle that transposed ldmatrix needs.
inline constexpr int kVBox = 128;
inline constexpr int kVColumns = kHeadDimV / kConsumers;
inline constexpr int kVBoxes = kVColumns / kVBox;
inline constexpr int kVBoxBytes = kTileTokens * kVBox;
inline constexpr int kVSwizzle = 128;
inline constexpr int kVStages = 7;

// P is scaled so that a weight of 1 becomes the largest e4m3 value.
inline constexpr float kLog2PMax = 8.807354922057604f;  // log2(448)

// Consumer warps: 4 groups of 32 rows by 2 groups of 128 columns. (With 64 rows by 64 columns, A
// fragments and factors take twice the registers, and those do not suffice.)
inline constexpr int kRowGroups = 4;
inline constexpr int kColumnGroups = kMathWarps / kRowGroups;
inline constexpr int kGroupRows = kRows / kRowGroups;
inline constexpr int kGroupColumns = kVColumns / kColumnGroups;
inline constexpr int kGroupFragments = kGroupRows / kFragmentRows;  // A fragments of a consumer warp
inline constexpr int kColumnBlocks = kGroupColumns / 16;            // 16-column blocks of one
static_assert(kGroupRows == 32, "a lane of a consumer warp works out the place of one row");
static_assert(kVBox == kGroupColumns, "a consumer warp reads one V box of a tile");

inline constexpr int kMaxWorkers = 128;  // clusters of four: 512 SMs
using Partials =
    PartialLayout<kMaxWorkers, kConsumers, kRows, kMathThreads, kRows * kVColumns / (4 * kMathThreads)>;
using Splits = SplitList<kMaxWorkers>;

inline constexpr int kItemStages = 4;
inline constexpr int kItemReaders = kMathWarps + 1;  // and the loader warp
using Queue = ItemQueue<kItemStages, kItemReaders>;
using Items = ItemReader<Queue>;

// What a P message says of a row, as a float4: the factor that brings what came before to the
// reference of this P, the sums of P as quantised and exact, the reference (log2). A factor with its
// sign set announces a second message for the tile.
struct TileRow {
  float factor, quantised_sum, exact_sum, reference;
};

// What a consumer knows of a row so far.
struct RowTotal {
  float reference, quantised_sum, exact_sum;
};

// A P tile, in the order of the A fragments of the consumers' MMA, then a TileRow of each row.
inline constexpr int kPStages = 4;
inline constexpr int kPBytes = kRows * kTileTokens;
inline constexpr int kPMessageBytes = kPBytes + kRows * sizeof(TileRow);
inline constexpr int kSourceStages = kPStages / kProducers;  // P stages of a producer
static_assert(kPStages % kProducers == 0, "a P stage belongs to one producer");
// The row groups of consumers' warps take their messages by themselves, from the warps of a producer
// that have their rows: a tile may need a second message for some of them.
inline constexpr int kSourceWarps = kMathWarps / kRowGroups;
static_assert(kSourceWarps * kFragmentRows == kGroupRows, "a row group's rows are those of whole warps");
inline constexpr int kGroupMessageBytes = kPMessageBytes / kRowGroups;

inline constexpr int kRingMessageBytes = kFragmentRows * sizeof(RowReference<float>);

struct ProducerSmem {
  alignas(1024) uint8_t k[kKStages][kKBoxBytes];
  alignas(16) RowReference<float> ring_reference[kRows];  // from the other producer
  uint64_t k_full[kKStages];
  uint64_t k_empty[kKStages];
  uint64_t ring_full[kMathWarps];
  uint64_t p_empty[kSourceStages][kRowGroups];
  uint32_t bad_chunks[kKStages];  // at the stage of a tile's first box: its chunks that are masked
  Queue queue;
};

struct ConsumerSmem {
  alignas(1024) uint8_t v[kVStages][kVBoxBytes];
  struct alignas(16) PStage {
    uint4 fragments[kMathWarps][2][32];  // [A fragment][k32 step][lane]
    alignas(16) TileRow rows[kRows];
  } p[kPStages];
  uint64_t v_full[kVStages];
  uint64_t v_empty[kVStages];
  uint64_t p_full[kPStages][kRowGroups];
  RowTotal rows[kRows];
  Splits splits;
  Queue queue;
};

// Modelled time of a tile of a row tile times the SMs that it occupies, ns: 1.07 us a tile and cluster
// were measured on an RTX PRO 6000 with a kernel of the same design; the emulated fp8 MMA of sm_90a
// takes 1.34 ms for 128 requests of 8192 tokens on an H200 (32 clusters).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1200
inline constexpr int kTileCost = 10470;
#else
inline constexpr int kTileCost = 4280;
#endif

inline constexpr int kSmemLimit = 101376 - 1024;  // sm_120: 99 KiB a block, less what the system takes
inline constexpr int kDynamicSmem = sizeof(ProducerSmem) > sizeof(ConsumerSmem) ? sizeof(ProducerSmem)
                                                                                : sizeof(ConsumerSmem);
static_assert(kDynamicSmem <= kSmemLimit, "shared memory of sm_120");

}  // namespace mla::cluster

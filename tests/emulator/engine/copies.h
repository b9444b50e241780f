// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies in flight.
#pragma once

#include "tests/emulator/engine/state.h"

namespace mla::emu {

inline constexpr uint32_t kMaxPieceBytes = 2048;

struct Piece {
  // Destination: shared memory of a CTA, or global memory.
  Cta* to_cta = nullptr;
  uint64_t to = 0;
  // Source: shared memory, global memory, `data`, or a fill pattern.
  enum Source : uint8_t { kGlobalSource, kSharedSource, kData, kFill } source = kData;
  enum Reduce : uint8_t { kCopy, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor } reduce = kCopy;
  uint8_t reduce_type = 0;  // T
  uint8_t fill_unit = 1;
  uint8_t swizzle = 0;  // of the shared side, as in CUtensorMapSwizzle
  uint8_t arrive = 0;   // arrivals on the barrier besides the bytes
  Cta* from_cta = nullptr;
  uint64_t from = 0;
  uint32_t bytes = 0;  // at most kMaxPieceBytes, the filled ones included
  uint32_t fill = 0;
  uint32_t fill_before = 0, fill_after = 0;  // bytes outside the tensor; not written by a store
  Cta* barrier_cta = nullptr;                // gets complete_tx of `tx` bytes
  uint32_t barrier_offset = 0;
  uint32_t tx = 0;
  uint8_t data[16] = {};
};

struct AsyncOp {
  Cta* issuer = nullptr;
  Warp* warp = nullptr;
  uint32_t lane = 0;
  uint32_t slot = 0;
  uint32_t clock = 0;
  uint32_t line = 0;
  const Instr* instr = nullptr;
  uint64_t not_before = 0;
  bool proxy = false;      // of the async proxy: bulk and tensor copies
  bool two_steps = false;  // reads everything first (bulk copies out of shared memory)
  bool read_done = false;
  std::vector<Piece> pieces;  // taken from the back
  Clocks clocks;  // of the issuing warp: ordered before the operation, and so before its completion
  std::vector<uint8_t> staging, staging_written;
  std::shared_ptr<BulkGroup> group;
  std::vector<Cta*> touched;  // CTAs whose shared memory it uses
};

}  // namespace mla::emu

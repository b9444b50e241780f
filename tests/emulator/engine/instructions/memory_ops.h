// SPDX-License-Identifier: Apache-2.0
//
// What memory instructions and asynchronous copies share.
#pragma once

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

enum OrderFlags : uint32_t { kStrongOrder = 1, kAcquire = 2, kRelease = 4, kClusterSpace = 8 };

struct SpaceChoice {
  Space space;
  bool cluster;
};

// The state space modifier of a load, store or atomic operation; generic without one.
SpaceChoice space_of(Decoder& d, bool param_too);

enum class AtomOp : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kCas, kInc, kDec };

// The new value of an atomic operation; bits above the type are ignored.
uint64_t atom_apply(AtomOp op, T t, uint64_t old, uint64_t b, uint64_t c, bool flush_f32 = false);
AtomOp atom_op(Decoder& d);

// Names a location for release/acquire.
uint64_t sync_key(const Machine& m, Space space, uint64_t address);

// The address that a lane's operand and immediate give; shared addresses have 32 bits.
inline uint64_t lane_address(Machine& m, const Opd& o, int64_t imm, uint32_t lane, bool shared) {
  uint64_t base = o.negated ? lanes<uint64_t>(m, o)[lane] : lanes<uint32_t>(m, o)[lane];
  uint64_t address = base + static_cast<uint64_t>(imm);
  return shared && !o.negated ? address & 0xffffffff : address;
}

}  // namespace mla::emu

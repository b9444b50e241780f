// SPDX-License-Identifier: Apache-2.0
//
// What the instructions that start, group and await asynchronous copies share.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tests/emulator/engine/instructions/memory_ops.h"

namespace mla::emu {

enum CopyFlags : uint32_t {
  kToShared = 1,
  kFromShared = 2,
  kMulticast = 4,
  kToClusterSpace = 8,
  kStore = 16
};

// Immediates of the further address operands.
struct CopyImm {
  int64_t source = 0, barrier = 0;
};

struct BarrierTarget {
  Cta* cta = nullptr;
  uint32_t offset = 0;
};

// The mbarrier that a copy completes on. False after a fault: it must be initialised, and stand beside the
// destination if there is one.
bool barrier_target(Machine& m, uint32_t lane, const Opd& o, int64_t imm, bool generic, Cta* destination,
                    BarrierTarget* out);

// Cuts a bulk copy into pieces of random sizes.
void split_copy(Machine& m, const Piece& whole, uint32_t bytes, std::vector<Piece>* out);

// The group of a thread that is not committed yet.
std::shared_ptr<BulkGroup> open_group(std::map<uint32_t, ThreadGroups>& groups, uint32_t lane);
// True when all committed groups but the last `allowed` are done (with reading their sources).
bool groups_done(ThreadGroups& mine, uint32_t allowed, bool read);
// The warp knows of what they did.
void retire_groups(Machine& m, ThreadGroups& mine, uint32_t allowed, bool read);

Piece::Reduce reduce_op(Decoder& d);
// Address operand that is not the first: its immediate goes elsewhere.
Opd further_address(Decoder& d, size_t i, Space space, int64_t* imm);
CopyImm* copy_imm(Decoder& d);

// Forms that have a file of their own.
void decode_st_async(Decoder& d);
void decode_cp_async(Decoder& d);
void decode_tensor_copy(Decoder& d, bool reduce);

}  // namespace mla::emu

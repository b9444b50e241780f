// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/emulator/engine/instructions/copy.h"

namespace mla::emu {

// The mbarrier that a copy completes on. Fails unless it is initialised and stands beside the
// destination.
bool barrier_target(Machine& m, uint32_t lane, const Opd& o, int64_t imm, bool generic, Cta* destination,
                    BarrierTarget* out) {
  uint64_t address = lane_address(m, o, imm, lane, true);
  if (generic) address -= kSharedWindow;
  out->cta = m.shared_target(static_cast<int>(lane), true, address, 8, 8, &out->offset);
  if (!out->cta) return false;
  if (destination && out->cta != destination) {
    m.fault(FaultKind::kBarrier, static_cast<int>(lane),
            "the mbarrier lies in the CTA with cluster rank %u, the destination in the one with rank %u: "
            "both must be the same",
            out->cta->rank, destination->rank);
    return false;
  }
  return m.find_barrier(static_cast<int>(lane), out->cta, out->offset) != nullptr;
}

void split_copy(Machine& m, const Piece& whole, uint32_t bytes, std::vector<Piece>* out) {
  uint32_t at = 0;
  while (at < bytes) {
    uint32_t size = std::min(bytes - at, 16 * (1 + m.rng.below(kMaxPieceBytes / 16)));
    Piece piece = whole;
    piece.to += at;
    piece.from += at;
    piece.bytes = size;
    piece.tx = whole.barrier_cta ? size : 0;
    out->push_back(piece);
    at += size;
  }
}

std::shared_ptr<BulkGroup> open_group(std::map<uint32_t, ThreadGroups>& groups, uint32_t lane) {
  ThreadGroups& mine = groups[lane];
  if (!mine.current) mine.current = std::make_shared<BulkGroup>();
  return mine.current;
}

bool groups_done(ThreadGroups& mine, uint32_t allowed, bool read) {
  for (size_t i = 0; i + allowed < mine.committed.size(); ++i) {
    if (read ? mine.committed[i]->reading : mine.committed[i]->running) return false;
  }
  return true;
}

void retire_groups(Machine& m, ThreadGroups& mine, uint32_t allowed, bool read) {
  constexpr size_t kRemembered = 64;
  uint32_t* clock = m.warp->clocks.v.data();
  const uint32_t done = read ? 0 : 1;  // the second time of a copy is that of its writes
  auto know = [&](const auto& epochs) {
    for (auto [agent, value] : epochs) clock[agent] = std::max(clock[agent], value + done);
  };
  for (size_t i = 0; i + allowed < mine.committed.size(); ++i) know(mine.committed[i]->epochs);
  while (!read && !mine.unwritten.empty() && mine.unwritten.size() + mine.committed.size() > allowed) {
    know(mine.unwritten.front());
    mine.unwritten.pop_front();
  }
  while (mine.committed.size() > allowed && (!read || mine.committed.front()->running == 0)) {
    if (read) mine.unwritten.push_back(std::move(mine.committed.front()->epochs));
    mine.committed.pop_front();
  }
  if (mine.unwritten.size() > kRemembered) {  // the two oldest count as one
    auto& second = mine.unwritten[1];
    second.insert(second.end(), mine.unwritten[0].begin(), mine.unwritten[0].end());
    mine.unwritten.pop_front();
  }
}

Piece::Reduce reduce_op(Decoder& d) {
  switch (atom_op(d)) {
    case AtomOp::kAdd:
      return Piece::kAdd;
    case AtomOp::kMin:
      return Piece::kMin;
    case AtomOp::kMax:
      return Piece::kMax;
    case AtomOp::kInc:
      return Piece::kInc;
    case AtomOp::kDec:
      return Piece::kDec;
    case AtomOp::kAnd:
      return Piece::kAnd;
    case AtomOp::kOr:
      return Piece::kOr;
    case AtomOp::kXor:
      return Piece::kXor;
    default:
      d.fail("operation of " + d.s.op_text + " is not supported");
  }
}

// Address operand that is not the first: its immediate goes elsewhere.
Opd further_address(Decoder& d, size_t i, Space space, int64_t* imm) {
  int64_t keep = d.in.imm;
  Opd o = d.address(d.operand(i), space);
  *imm = d.in.imm;
  d.in.imm = keep;
  return o;
}

CopyImm* copy_imm(Decoder& d) {
  auto owned = std::make_shared<CopyImm>();
  CopyImm* p = owned.get();
  d.program().call_tables.push_back(std::move(owned));
  d.in.p = p;
  return p;
}

}  // namespace mla::emu

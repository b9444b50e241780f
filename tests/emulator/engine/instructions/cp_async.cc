// SPDX-License-Identifier: Apache-2.0
//
// cp.async: copies of 4 to 16 bytes by each thread, and their groups.
#include <algorithm>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/copy.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

namespace {

// cp.async: o[0] shared address, o[1] global address, o[2] source size (optional) or ignore predicate;
// a[0] bytes, a[1] 1: o[2] is a size, 2: a predicate.
Next do_cp_async(Machine& m, const Instr& in, uint32_t mask) {
  const CopyImm& imm = *static_cast<const CopyImm*>(in.p);
  AsyncOp* op = m.new_op(__builtin_ctz(mask));
  if (!op) return Next::kFault;
  uint32_t ignore = in.a[1] == 2 ? predicate(m, in.o[2]) : 0;
  MLA_FOR_LANES(lane, mask) {
    op->lane = lane;
    uint64_t to = lane_address(m, in.o[0], in.imm, lane, true),
             from = lane_address(m, in.o[1], imm.source, lane, false);
    uint32_t offset = 0, bytes = in.a[0];
    Piece piece;
    piece.to_cta = m.shared_target(static_cast<int>(lane), false, to, bytes, bytes, &offset);
    if (!piece.to_cta) return Next::kFault;
    if (from % bytes)
      return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                     "global address 0x%llx is not a multiple of %u", static_cast<ull>(from), bytes);
    uint32_t valid = in.a[1] == 1 ? lanes<uint32_t>(m, in.o[2])[lane] : (ignore >> lane) & 1 ? 0 : bytes;
    if (valid > bytes)
      return m.fault(FaultKind::kInstruction, static_cast<int>(lane), "cp.async reads %u bytes and writes %u",
                     valid, bytes);
    piece.to = offset;
    piece.bytes = bytes;
    piece.source = Piece::kGlobalSource;
    piece.from = from;
    piece.fill_after = bytes - valid;
    op->pieces.push_back(piece);
  }
  op->group = open_group(m.warp->cp_async, 0);
  return m.issue(op) ? Next::kNext : Next::kFault;
}

Next do_cp_commit(Machine& m, const Instr&, uint32_t) {
  ThreadGroups& mine = m.warp->cp_async[0];
  if (!mine.current) mine.current = std::make_shared<BulkGroup>();
  mine.committed.push_back(std::move(mine.current));
  mine.current.reset();
  return Next::kNext;
}

// a[0] groups that may stay, a[1] 1: wait_all.
Next do_cp_wait(Machine& m, const Instr& in, uint32_t mask) {
  ThreadGroups& mine = m.warp->cp_async[0];
  if (in.a[1] && mine.current) do_cp_commit(m, in, mask);
  if (!groups_done(mine, in.a[0], false)) {
    m.group->wait.offset = in.a[0];
    m.wait_on(WaitKind::kAsyncGroup, nullptr);
    return Next::kBlocked;
  }
  retire_groups(m, mine, in.a[0], false);
  return Next::kNext;
}

// cp.async.mbarrier.arrive: the arrival happens when the cp.async of the thread before it are done. The
// emulator waits for them here. a[0] 1: noinc.
Next do_cp_arrive(Machine& m, const Instr& in, uint32_t mask) {
  ThreadGroups& mine = m.warp->cp_async[0];
  bool busy = mine.current && mine.current->running;
  for (auto& group : mine.committed) busy |= group->running != 0;
  if (busy) {
    m.wait_on(WaitKind::kAsyncGroup, nullptr);
    return Next::kBlocked;
  }
  Clocks seen = m.warp->clocks;
  auto take = [&](const BulkGroup& group) {
    for (auto [agent, value] : group.epochs) seen.v[agent] = std::max(seen.v[agent], value);
  };
  if (mine.current) take(*mine.current);
  for (auto& group : mine.committed) take(*group);
  // Only the copies are released by it, not the thread's other writes: the slots' clocks.
  Clocks released;
  released.v.assign(3 * m.agents, 0);
  for (uint32_t rank = 0; rank < m.cluster_size; ++rank) {
    for (uint32_t s = 0; s < m.slots; ++s) {
      uint32_t agent = rank * m.agents_per_cta + m.warps_per_cta + s;
      released.v[agent] = seen.v[agent];
    }
  }
  MLA_FOR_LANES(lane, mask) {
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[1]) address -= kSharedWindow;
    uint32_t offset = 0;
    Cta* owner = m.shared_target(static_cast<int>(lane), false, address, 8, 8, &offset);
    if (!owner) return Next::kFault;
    Mbarrier* b = m.find_barrier(static_cast<int>(lane), owner, offset);
    if (!b) return Next::kFault;
    m.join(b->arriving, released);
    if (in.a[0]) {
      if (!m.arrive(static_cast<int>(lane), owner, offset, b, 1, 0)) return Next::kFault;
    } else {
      ++m.progress;
      m.try_complete(b);  // pending is raised and lowered again
    }
  }
  return Next::kNext;
}

}  // namespace

void decode_cp_async(Decoder& d) {
  Instr& in = d.in;
  if (d.mod("commit_group")) {
    d.need(0);
    in.fn = do_cp_commit;
    return;
  }
  if (d.mod("wait_group")) {
    d.need(1);
    in.fn = do_cp_wait;
    in.a[0] = static_cast<uint32_t>(d.immediate(0));
    return;
  }
  if (d.mod("wait_all")) {
    d.need(0);
    in.fn = do_cp_wait;
    in.a[1] = 1;
    return;
  }
  if (d.mod("mbarrier")) {
    if (!d.mod("arrive")) d.fail("instruction " + d.s.op_text + " is not supported");
    in.a[0] = d.mod("noinc");
    std::string space = d.one_of({"shared", "shared::cta"});
    d.type_in({T::kB64});
    d.need(1);
    in.fn = do_cp_arrive;
    in.a[1] = space.empty();
    in.o[1] = d.address(d.operand(0), space.empty() ? Space::kGeneric : Space::kShared);
    return;
  }
  if (d.one_of({"ca", "cg"}).empty()) d.fail("instruction " + d.s.op_text + " is not supported");
  if (d.one_of({"shared", "shared::cta"}).empty() || !d.mod("global"))
    d.fail("instruction " + d.s.op_text + " is not supported");
  bool hint = d.mod("L2::cache_hint");
  d.one_of({"L2::64B", "L2::128B", "L2::256B"});
  d.need(hint ? 4 : 3, hint ? 5 : 4);
  int64_t bytes = d.immediate(2);
  if (bytes != 4 && bytes != 8 && bytes != 16) d.fail("cp.async copies 4, 8 or 16 bytes");
  CopyImm* imm = copy_imm(d);
  in.fn = do_cp_async;
  in.a[0] = static_cast<uint32_t>(bytes);
  in.o[0] = d.address(d.operand(0), Space::kShared);
  in.o[1] = further_address(d, 1, Space::kGlobal, &imm->source);
  if (d.count() == (hint ? 5u : 4u)) {
    const Operand& o = d.operand(3);
    bool is_predicate = o.kind == Operand::kReg && d.register_bits(o.reg) == 1;
    in.a[1] = is_predicate ? 2 : 1;
    in.o[2] = is_predicate ? d.src_pred(o) : d.src(o, T::kU32);
  }
  if (hint) in.o[4] = d.src(d.count() - 1, T::kB64);
}

}  // namespace mla::emu

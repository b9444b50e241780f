// SPDX-License-Identifier: Apache-2.0
//
// cp.async.bulk: copies of whole arrays, their groups; entry to all cp instructions.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/copy.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

namespace {

// cp.async.bulk. o[0] destination, o[1] source, o[2] size, o[3] mbarrier, o[4] multicast mask.
Next do_bulk(Machine& m, const Instr& in, uint32_t mask) {
  const CopyImm& imm = *static_cast<const CopyImm*>(in.p);
  MLA_FOR_LANES(lane, mask) {
    uint32_t bytes = lanes<uint32_t>(m, in.o[2])[lane];
    if (bytes == 0) continue;
    if (bytes % 16)
      return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                     "bulk copy of %u bytes: the size must be a multiple of 16", bytes);
    uint64_t to = lane_address(m, in.o[0], in.imm, lane, in.a[0] & kToShared);
    uint64_t from = lane_address(m, in.o[1], imm.source, lane, in.a[0] & kFromShared);
    Piece whole;
    whole.source = in.a[0] & kFromShared ? Piece::kSharedSource : Piece::kGlobalSource;
    whole.reduce = static_cast<Piece::Reduce>(in.a[1]);
    whole.reduce_type = static_cast<uint8_t>(in.a[2]);
    if (in.a[0] & kFromShared) {
      uint32_t offset = 0;
      whole.from_cta = m.shared_target(static_cast<int>(lane), false, from, bytes, 16, &offset);
      if (!whole.from_cta) return Next::kFault;
      whole.from = offset;
    } else {
      if (from % 16)
        return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                       "bulk copy from 0x%llx: the address must be a multiple of 16", static_cast<ull>(from));
      whole.from = from;
    }
    std::vector<uint32_t> ranks;
    uint32_t to_offset = 0;
    Cta* target = nullptr;
    if (in.a[0] & kToShared) {
      target = m.shared_target(static_cast<int>(lane), in.a[0] & kToClusterSpace, to, bytes, 16, &to_offset);
      if (!target) return Next::kFault;
      if (in.a[0] & kMulticast) {
        uint32_t wanted = lanes<uint32_t>(m, in.o[4])[lane] & 0xffff;
        for (uint32_t r = 0; r < 16; ++r) {
          if ((wanted >> r) & 1) ranks.push_back(r);
        }
      } else {
        ranks.push_back(target->rank);
      }
    } else {
      if (to % 16)
        return m.fault(FaultKind::kMisaligned, static_cast<int>(lane),
                       "bulk copy to 0x%llx: the address must be a multiple of 16", static_cast<ull>(to));
      ranks.push_back(0);
    }
    for (uint32_t rank : ranks) {
      if ((in.a[0] & kMulticast) && rank >= m.cluster_size) {
        return m.fault(FaultKind::kOutOfBounds, static_cast<int>(lane),
                       "multicast to CTA rank %u of a cluster of %u CTAs", rank, m.cluster_size);
      }
      AsyncOp* op = m.new_op(static_cast<int>(lane));
      if (!op) return Next::kFault;
      op->proxy = true;
      Piece piece = whole;
      if (in.a[0] & kToShared) {
        piece.to_cta = m.cta->cluster->ctas[rank].get();
        uint64_t address = in.a[0] & kMulticast ? (uint64_t{rank} + 1) << kRankShift | to_offset : to;
        if (!m.shared_target(static_cast<int>(lane), true, address, bytes, 16, &to_offset))
          return Next::kFault;
        piece.to = to_offset;
        BarrierTarget b;
        if (!barrier_target(m, lane, in.o[3], imm.barrier, false,
                            in.a[0] & kMulticast ? nullptr : piece.to_cta, &b))
          return Next::kFault;
        if (in.a[0] & kMulticast) {
          b.cta = piece.to_cta;
          if (!m.find_barrier(static_cast<int>(lane), b.cta, b.offset)) return Next::kFault;
        }
        piece.barrier_cta = b.cta;
        piece.barrier_offset = b.offset;
      } else {
        piece.to = to;
        op->two_steps = true;
        op->group = open_group(m.warp->bulk, lane);
      }
      split_copy(m, piece, bytes, &op->pieces);
      if (!m.issue(op)) return Next::kFault;
    }
  }
  return Next::kNext;
}

Next do_bulk_commit(Machine& m, const Instr&, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    ThreadGroups& mine = m.warp->bulk[lane];
    if (!mine.current) mine.current = std::make_shared<BulkGroup>();
    mine.committed.push_back(std::move(mine.current));
    mine.current.reset();
  }
  return Next::kNext;
}

// a[0] groups that may stay, a[1] .read.
Next do_bulk_wait(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    auto found = m.warp->bulk.find(lane);
    if (found == m.warp->bulk.end()) continue;
    if (!groups_done(found->second, in.a[0], in.a[1])) {
      m.group->wait.offset = in.a[0];
      m.group->wait.lane = lane;
      m.group->wait.read_only = in.a[1];
      m.wait_on(WaitKind::kBulkGroup, nullptr);
      return Next::kBlocked;
    }
  }
  MLA_FOR_LANES(lane, mask) {
    auto found = m.warp->bulk.find(lane);
    if (found != m.warp->bulk.end()) retire_groups(m, found->second, in.a[0], in.a[1]);
  }
  return Next::kNext;
}

Next do_nothing(Machine&, const Instr&, uint32_t) { return Next::kNext; }

void decode_cp(Decoder& d) {
  Instr& in = d.in;
  bool reduce = d.mod("reduce");
  if (!d.mod("async")) d.fail("instruction " + d.s.op_text + " is not supported");
  if (!d.mod("bulk")) {
    if (reduce) d.fail("instruction " + d.s.op_text + " is not supported");
    return decode_cp_async(d);
  }
  if (d.mod("commit_group")) {
    d.need(0);
    in.fn = do_bulk_commit;
    return;
  }
  if (d.mod("wait_group")) {
    d.need(1);
    in.fn = do_bulk_wait;
    in.a[1] = d.mod("read");
    in.a[0] = static_cast<uint32_t>(d.immediate(0));
    return;
  }
  if (d.mod("prefetch")) {
    bool tensor = d.mod("tensor");
    d.one_of({"1d", "2d", "3d", "4d", "5d"});
    if (!d.mod("L2") || !d.mod("global")) d.fail("instruction " + d.s.op_text + " is not supported");
    d.mod("tile");
    d.mod("L2::cache_hint");
    d.need(tensor ? 1 : 2, tensor ? 2 : 3);
    in.fn = do_nothing;
    return;
  }
  if (d.mod("tensor")) return decode_tensor_copy(d, reduce);

  std::string to = d.one_of({"shared::cluster", "shared::cta", "global"});
  std::string from = d.one_of({"global", "shared::cta"});
  CopyImm* imm = copy_imm(d);
  in.fn = do_bulk;
  if (to == "global") {
    if (from != "shared::cta") d.fail("instruction " + d.s.op_text + " is not supported");
    if (!d.mod("bulk_group")) d.fail(d.s.op_text + " needs .bulk_group");
    bool hint = d.mod("L2::cache_hint");
    if (reduce) {
      in.a[1] = reduce_op(d);
      d.mod("noftz");
      in.a[2] = static_cast<uint32_t>(d.type_in(
          {T::kF16, T::kBF16, T::kF32, T::kF64, T::kU32, T::kS32, T::kU64, T::kS64, T::kB32, T::kB64}));
    }
    d.need(hint ? 4 : 3);
    in.a[0] = kFromShared;
    in.o[0] = d.address(d.operand(0), Space::kGlobal);
    in.o[1] = further_address(d, 1, Space::kShared, &imm->source);
    in.o[2] = d.src(2, T::kU32);
    if (hint) in.o[4] = d.src(3, T::kB64);
    return;
  }
  if (to.empty() || from.empty()) d.fail("instruction " + d.s.op_text + " is not supported");
  if (!d.mod("mbarrier::complete_tx::bytes")) d.fail(d.s.op_text + " needs .mbarrier::complete_tx::bytes");
  bool multicast = d.mod("multicast::cluster"), hint = d.mod("L2::cache_hint");
  if (from == "shared::cta" && (to != "shared::cluster" || multicast || hint))
    d.fail("instruction " + d.s.op_text + " is not supported");
  if (reduce) {
    in.a[1] = reduce_op(d);
    in.a[2] = static_cast<uint32_t>(d.type_in({T::kU32, T::kS32, T::kU64, T::kB32}));
  }
  d.need(4u + (multicast ? 1u : 0u) + (hint ? 1u : 0u));
  in.a[0] = kToShared | (to == "shared::cluster" ? kToClusterSpace : 0u) |
            (from == "shared::cta" ? kFromShared : 0u) | (multicast ? kMulticast : 0u);
  in.o[0] = d.address(d.operand(0), Space::kShared);
  in.o[1] = further_address(d, 1, from == "global" ? Space::kGlobal : Space::kShared, &imm->source);
  in.o[2] = d.src(2, T::kU32);
  in.o[3] = further_address(d, 3, Space::kShared, &imm->barrier);
  if (multicast) in.o[4] = d.src(4, T::kU16);
  if (hint) d.src(d.count() - 1, T::kB64);
}

}  // namespace

void add_copy_instructions(InstructionTable* table) { (*table)["cp"] = decode_cp; }

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// mbarrier.*.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/memory_ops.h"

namespace mla::emu {

namespace {

constexpr int64_t kMaxTx = (1 << 20) - 1;
constexpr uint32_t kMaxCount = (1 << 20) - 1;

uint64_t state_of(const Mbarrier& b) { return b.phase << 32 | b.pending; }

// o[1] address, o[2] count.
Next do_init(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[0]) address -= kSharedWindow;
    uint32_t offset = 0;
    Cta* owner = m.shared_target(static_cast<int>(lane), false, address, 8, 8, &offset);
    if (!owner) return Next::kFault;
    uint32_t count = lanes<uint32_t>(m, in.o[2])[lane];
    if (count == 0 || count > kMaxCount) {
      return m.fault(FaultKind::kBarrier, static_cast<int>(lane), "mbarrier count %u is not in 1 to %u",
                     count, kMaxCount);
    }
    auto& slot = owner->mbarriers[offset];
    if (slot) {
      if (!m.finding(Check::kMbarrierInit, FaultKind::kBarrier, static_cast<int>(lane),
                     "mbarrier.init at %s, where an mbarrier is in use (initialised by PTX line %u); "
                     "mbarrier.inval must come "
                     "first",
                     m.shared_name(owner, offset).c_str(), slot->init_line))
        return Next::kFault;
      m.wake(slot->waiters);
      if (m.shared_shadow) m.cell(owner, offset)->barrier &= static_cast<uint16_t>(~(255u << (offset & 8)));
    }
    if (!m.check_shared(static_cast<int>(lane), owner, offset, 8, kWrite)) {
      owner->mbarriers.erase(offset);
      return Next::kFault;
    }
    slot = std::make_unique<Mbarrier>();
    slot->count = slot->pending = count;
    slot->init_agent = static_cast<uint16_t>(m.warp->agent);
    slot->init_clock = m.warp->clocks.v[m.warp->agent];
    slot->init_cluster_arrivals = m.warp->cluster_arrivals;
    slot->init_line = in.line;
    slot->arriving.v.assign(3 * m.agents, 0);
    if (m.shared_shadow) m.cell(owner, offset)->barrier |= static_cast<uint16_t>(255u << (offset & 8));
    ++m.progress;
  }
  return Next::kNext;
}

Next do_inval(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[0]) address -= kSharedWindow;
    uint32_t offset = 0;
    Cta* owner = m.shared_target(static_cast<int>(lane), false, address, 8, 8, &offset);
    if (!owner) return Next::kFault;
    Mbarrier* b = m.find_barrier(static_cast<int>(lane), owner, offset);
    if (!b) return Next::kFault;
    if (!b->waiters.empty() || b->tx != 0) {
      return m.fault(FaultKind::kBarrier, static_cast<int>(lane),
                     "mbarrier.inval at %s while %zu warps wait and %lld bytes are awaited",
                     m.shared_name(owner, offset).c_str(), b->waiters.size(), static_cast<long long>(b->tx));
    }
    owner->mbarriers.erase(offset);
    if (m.shared_shadow) {
      Cell* c = m.cell(owner, offset);
      uint16_t bytes = static_cast<uint16_t>(255u << (offset & 8));
      c->barrier &= static_cast<uint16_t>(~bytes);
      c->written &= static_cast<uint16_t>(~bytes);
    }
    ++m.progress;
  }
  return Next::kNext;
}

enum ArriveFlags : uint32_t {
  kGenericAddress = 1,
  kClusterAddress = 2,
  kRelaxed = 4,
  kDrop = 8,
  kExpect = 16,
  kNoComplete = 32,
  kCompleteOnly = 64,
  kNoArrive = 128
};

// o[0] state, o[1] address, o[2] count or bytes.
Next do_arrive(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[0] & kGenericAddress) {
      if (address >> 36 << 36 != kSharedWindow) {
        return m.fault(FaultKind::kBarrier, static_cast<int>(lane),
                       "0x%llx is no generic address of shared memory",
                       static_cast<unsigned long long>(address));
      }
      address -= kSharedWindow;
    }
    uint32_t offset = 0;
    // A generic address may lie in another CTA of the cluster (mapa.u64).
    Cta* owner = m.shared_target(static_cast<int>(lane), in.a[0] & (kClusterAddress | kGenericAddress),
                                 address, 8, 8, &offset);
    if (!owner) return Next::kFault;
    if (in.o[0].present && owner != m.cta) {
      return m.fault(
          FaultKind::kBarrier, static_cast<int>(lane),
          "the mbarrier lies in the CTA with cluster rank %u: an arrival there gives no state, the "
          "destination must be _",
          owner->rank);
    }
    Mbarrier* b = m.find_barrier(static_cast<int>(lane), owner, offset);
    if (!b) return Next::kFault;
    uint32_t value = in.o[2].present ? lanes<uint32_t>(m, in.o[2])[lane] : 1;
    if (in.o[0].present) lanes<uint64_t>(m, in.o[0])[lane] = state_of(*b);
    if (in.a[0] & kNoArrive) {  // expect_tx or complete_tx alone
      b->tx += in.a[0] & kCompleteOnly ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
      if (b->tx > kMaxTx || b->tx < -kMaxTx) {
        if (!m.finding(Check::kMbarrierCounts, FaultKind::kBarrier, static_cast<int>(lane),
                       "transaction count of the mbarrier at %s leaves its range: %lld bytes",
                       m.shared_name(owner, offset).c_str(), static_cast<long long>(b->tx)))
          return Next::kFault;
      }
      ++m.progress;
      m.try_complete(b);
      continue;
    }
    uint32_t count = in.a[0] & kExpect ? 1 : value;
    if (in.a[0] & kRelaxed) {
      if (!m.warp->fence_release.empty()) m.join(b->arriving, m.warp->fence_release);
    } else {
      m.release_to(b->arriving, m.warp);
    }
    if (in.a[0] & kDrop) {
      if (b->count < count)
        return m.fault(FaultKind::kBarrier, static_cast<int>(lane),
                       "arrive_drop of %u from an mbarrier of count %u", count, b->count);
      b->count -= count;
    }
    if (in.a[0] & kNoComplete && count >= b->pending && b->tx == 0) {
      return m.fault(FaultKind::kBarrier, static_cast<int>(lane),
                     "mbarrier.arrive.noComplete would complete the phase of the mbarrier at %s",
                     m.shared_name(owner, offset).c_str());
    }
    if (!m.arrive(static_cast<int>(lane), owner, offset, b, count, in.a[0] & kExpect ? value : 0))
      return Next::kFault;
  }
  return Next::kNext;
}

enum WaitFlags : uint32_t { kWaitGeneric = 1, kParity = 2, kTry = 4, kRelaxedWait = 8 };

// o[0] predicate, o[1] address, o[2] state or parity.
Next do_wait(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t ready = 0;
  Mbarrier* blocking = nullptr;
  Cta* blocking_cta = nullptr;
  uint32_t blocking_lane = 0, blocking_offset = 0, blocking_parity = 0;
  MLA_FOR_LANES(lane, mask) {
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, true);
    if (in.a[0] & kWaitGeneric) address -= kSharedWindow;
    uint32_t offset = 0;
    Cta* owner = m.shared_target(static_cast<int>(lane), false, address, 8, 8, &offset);
    if (!owner) return Next::kFault;
    Mbarrier* b = m.find_barrier(static_cast<int>(lane), owner, offset);
    if (!b) return Next::kFault;
    bool done;
    uint32_t parity;
    if (in.a[0] & kParity) {
      parity = lanes<uint32_t>(m, in.o[2])[lane];
      if (parity > 1) {
        return m.fault(FaultKind::kBarrier, static_cast<int>(lane), "phase parity %u is not 0 or 1", parity);
      }
      done = (b->phase & 1) != parity;
    } else {
      uint64_t state = lanes<uint64_t>(m, in.o[2])[lane];
      done = b->phase != state >> 32;
      parity = static_cast<uint32_t>((state >> 32) & 1);
    }
    if (done) {
      ready |= 1u << lane;
      if (in.a[0] & kRelaxedWait) {
        m.join(m.warp->fence_acquire, b->completed);
      } else {
        m.acquire_from(m.warp, b->completed);
      }
    } else if (!blocking) {
      blocking = b;
      blocking_cta = owner;
      blocking_lane = lane;
      blocking_offset = offset;
      blocking_parity = parity;
    }
  }
  if (ready == mask) {
    set_predicate(m, in.o[0], ready, mask);
    return Next::kNext;
  }
  // try_wait may give up at any time: now and then it does at once.
  if (!(in.a[0] & kTry) || m.rng.below(16) == 0) {
    set_predicate(m, in.o[0], ready, mask);
    return Next::kYield;
  }
  Wait& wait = m.group->wait;
  wait.cta = blocking_cta;
  wait.offset = blocking_offset;
  wait.parity = blocking_parity;
  wait.phase = blocking->phase;
  wait.lane = blocking_lane;
  m.wait_on(WaitKind::kMbarrier, &blocking->waiters);
  return Next::kBlocked;
}

Next do_pending_count(Machine& m, const Instr& in, uint32_t mask) {
  const uint64_t* state = lanes<uint64_t>(m, in.o[1]);
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) r[i] = static_cast<uint32_t>(state[i]);
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

void decode_mbarrier(Decoder& d) {
  Instr& in = d.in;
  std::string what = d.one_of({"init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
                               "test_wait", "try_wait", "pending_count"});
  bool also_expect = (what == "arrive" || what == "arrive_drop") && d.mod("expect_tx");
  if (what == "expect_tx" && (d.mod("arrive"))) d.fail("write mbarrier.arrive.expect_tx");
  std::string sem = d.one_of({"release", "acquire", "relaxed"});
  std::string scope = d.one_of({"cta", "cluster"});
  std::string space = d.one_of({"shared", "shared::cta", "shared::cluster"});
  bool no_complete = d.mod("noComplete"), parity = d.mod("parity");
  d.type_in({T::kB64});
  bool generic = space.empty(), cluster = space == "shared::cluster";
  Space address_space = generic ? Space::kGeneric : Space::kShared;
  if (what == "init") {
    d.need(2);
    if (!sem.empty() || cluster) d.fail(d.s.op_text + " is not supported");
    in.fn = do_init;
    in.a[0] = generic;
    in.o[1] = d.address(d.operand(0), address_space);
    in.o[2] = d.src(1, T::kU32);
    return;
  }
  if (what == "inval") {
    d.need(1);
    if (cluster) d.fail(d.s.op_text + " is not supported");
    in.fn = do_inval;
    in.a[0] = generic;
    in.o[1] = d.address(d.operand(0), address_space);
    return;
  }
  if (what == "arrive" || what == "arrive_drop") {
    if (sem == "acquire") d.fail("mbarrier.arrive has .release or .relaxed");
    in.fn = do_arrive;
    in.a[0] = (generic ? kGenericAddress : 0u) | (cluster ? kClusterAddress : 0u) |
              (sem == "relaxed" ? kRelaxed : 0u) | (what == "arrive_drop" ? kDrop : 0u) |
              (also_expect ? kExpect : 0u) | (no_complete ? kNoComplete : 0u);
    // The state operand may be absent for shared::cluster.
    size_t at = 0;
    if (d.count() && d.operand(0).kind != Operand::kAddress) {
      if (d.operand(0).kind == Operand::kReg) {
        if (cluster) d.fail("mbarrier.arrive on shared::cluster gives no state: the destination must be _");
        in.o[0] = d.dst(0, T::kB64);
      } else if (d.operand(0).kind != Operand::kSink) {
        d.fail("operand form is not supported in " + d.s.op_text);
      }
      at = 1;
    }
    d.need(at + (also_expect ? 2 : 1), at + 2);
    in.o[1] = d.address(d.operand(at), address_space);
    if (d.count() > at + 1) in.o[2] = d.src(at + 1, T::kU32);
    return;
  }
  if (what == "expect_tx" || what == "complete_tx") {
    d.need(2);
    in.fn = do_arrive;
    in.a[0] = kNoArrive | (generic ? kGenericAddress : 0u) | (cluster ? kClusterAddress : 0u) |
              (what == "complete_tx" ? kCompleteOnly : 0u);
    in.o[1] = d.address(d.operand(0), address_space);
    in.o[2] = d.src(1, T::kU32);
    return;
  }
  if (what == "test_wait" || what == "try_wait") {
    if (sem == "release" || cluster) d.fail(d.s.op_text + " is not supported");
    d.need(3, what == "try_wait" ? 4 : 3);
    in.fn = do_wait;
    in.a[0] = (generic ? kWaitGeneric : 0u) | (parity ? kParity : 0u) | (what == "try_wait" ? kTry : 0u) |
              (sem == "relaxed" ? kRelaxedWait : 0u);
    in.o[0] = d.dst(0, T::kPred);
    in.o[1] = d.address(d.operand(1), address_space);
    in.o[2] = parity ? d.src(2, T::kU32) : d.src(2, T::kB64);
    if (d.count() == 4) in.o[3] = d.src(3, T::kU32);
    return;
  }
  if (what == "pending_count") {
    d.need(2);
    in.fn = do_pending_count;
    in.o[0] = d.dst(0, T::kB32);
    in.o[1] = d.src(1, T::kB64);
    return;
  }
  d.fail("instruction " + d.s.op_text + " is not supported");
}

}  // namespace

void add_mbarrier_instructions(InstructionTable* table) { (*table)["mbarrier"] = decode_mbarrier; }

}  // namespace mla::emu

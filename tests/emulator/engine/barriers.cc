// SPDX-License-Identifier: Apache-2.0
//
// mbarriers, named barriers, cluster barriers, setmaxnreg.
#include <algorithm>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/memory_ops.h"

namespace mla::emu {

namespace {

constexpr int64_t kMaxTx = (1 << 20) - 1;
constexpr uint32_t kMaxCount = (1 << 20) - 1;

// Gives the value that all lanes of the mask share, or fails.
bool uniform(Machine& m, const Opd& o, uint32_t mask, const char* what, uint32_t* value) {
  const uint32_t* v = lanes<uint32_t>(m, o);
  uint32_t first = static_cast<uint32_t>(__builtin_ctz(mask));
  MLA_FOR_LANES(lane, mask) {
    if (v[lane] != v[first]) {
      m.fault(FaultKind::kBarrier, static_cast<int>(lane),
              "%s differs between lanes: %u in lane %u, %u in lane %u", what, v[first], first, v[lane], lane);
      return false;
    }
  }
  *value = v[first];
  return true;
}

}  // namespace

// ---------------------------------------------------------------- waiting and waking

void Machine::wait_on(WaitKind kind, std::vector<WaiterRef>* list) {
  group->blocked = true;
  group->wait.kind = kind;
  if (list) list->push_back({warp, group->id});
}

void Machine::wake_one(Warp* w, uint32_t id) {
  for (Group& g : w->groups) {
    if (g.id == id) {
      g.blocked = false;
      g.wait.kind = WaitKind::kNone;
      make_runnable(w);
      return;
    }
  }
}

void Machine::wake(std::vector<WaiterRef>& waiters) {
  std::vector<WaiterRef> list;
  list.swap(waiters);
  for (const WaiterRef& w : list) wake_one(w.warp, w.group);
}

// ---------------------------------------------------------------- mbarriers

Mbarrier* Machine::find_barrier(int lane, Cta* owner, uint32_t offset) {
  auto found = owner->mbarriers.find(offset);
  if (found == owner->mbarriers.end()) {
    fault(FaultKind::kBarrier, lane, "there is no mbarrier at %s: it was not initialised",
          shared_name(owner, offset).c_str());
    return nullptr;
  }
  Mbarrier* b = found->second.get();
  if (config->checks.shared_races && b->init_agent != warp->agent &&
      b->init_clock > warp->clocks.v[b->init_agent] &&
      !(b->init_fenced && warp->cluster_waits > b->init_cluster_arrivals)) {
    fault(FaultKind::kBarrier, lane,
          "use of the mbarrier at %s is not ordered after its initialisation by %s (PTX line %u): a barrier "
          "between them "
          "is missing%s",
          shared_name(owner, offset).c_str(), agent_name(*owner->cluster, b->init_agent).c_str(),
          b->init_line, owner == cta ? "" : ", or fence.mbarrier_init before it");
    return nullptr;
  }
  return b;
}

void Machine::try_complete(Mbarrier* b) {
  if (b->pending != 0 || b->tx != 0) return;
  ++b->phase;
  b->pending = b->count;
  join(b->completed, b->arriving);
  b->arriving.v.assign(2 * agents, 0);
  b->arriving.foreign.reset();
  b->arriving.proxy_foreign.reset();
  ++progress;
  wake(b->waiters);
}

bool Machine::arrive(int lane, Cta* owner, uint32_t offset, Mbarrier* b, uint32_t count, int64_t expect_tx) {
  if (count == 0 || count > b->pending) {
    fault(FaultKind::kBarrier, lane,
          "arrival of %u at the mbarrier at %s, but its phase %llu (of %u arrivals) waits for %u more and "
          "%lld bytes",
          count, shared_name(owner, offset).c_str(), static_cast<unsigned long long>(b->phase), b->count,
          b->pending, static_cast<long long>(b->tx));
    return false;
  }
  b->tx += expect_tx;
  if (b->tx > kMaxTx || b->tx < -kMaxTx) {
    fault(FaultKind::kBarrier, lane, "transaction count of the mbarrier at %s leaves its range: %lld bytes",
          shared_name(owner, offset).c_str(), static_cast<long long>(b->tx));
    return false;
  }
  b->pending -= count;
  ++progress;
  try_complete(b);
  return true;
}

bool Machine::complete_tx(Cta* owner, uint32_t offset, Mbarrier* b, uint32_t bytes, const AsyncOp* op) {
  (void)op;
  b->tx -= bytes;
  if (b->tx < -kMaxTx) {
    fault(FaultKind::kBarrier, -1, "transaction count of the mbarrier at %s leaves its range: %lld bytes",
          shared_name(owner, offset).c_str(), static_cast<long long>(b->tx));
    return false;
  }
  ++progress;
  try_complete(b);
  return true;
}

namespace {

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
      return m.fault(FaultKind::kBarrier, static_cast<int>(lane),
                     "mbarrier.init at %s, where an mbarrier is in use (initialised by PTX line %u); "
                     "mbarrier.inval must come "
                     "first",
                     m.shared_name(owner, offset).c_str(), slot->init_line);
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
    slot->arriving.v.assign(2 * m.agents, 0);
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
        return m.fault(FaultKind::kBarrier, static_cast<int>(lane),
                       "transaction count of the mbarrier at %s leaves its range: %lld bytes",
                       m.shared_name(owner, offset).c_str(), static_cast<long long>(b->tx));
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

}  // namespace

// ---------------------------------------------------------------- named barriers

void Machine::complete_named(Cta* owner, NamedBarrier& b) {
  (void)owner;
  for (const WaiterRef& w : b.waiters) join(w.warp->clocks, b.arriving);
  b.expected = b.arrived = 0;
  b.whole = false;
  b.done_and = b.red_and;
  b.done_or = b.red_or;
  b.done_count = b.red_count;
  b.red_and = ~0u;
  b.red_or = b.red_count = 0;
  b.arriving.v.assign(2 * agents, 0);
  b.arriving.foreign.reset();
  b.arriving.proxy_foreign.reset();
  ++progress;
  wake(b.waiters);
}

// After warps exited: a barrier of the whole CTA may be complete now.
void Machine::check_named(Cta* owner, uint32_t id) {
  NamedBarrier& b = owner->named[id];
  if (b.arrived && b.whole && b.arrived >= owner->live_warps * 32) complete_named(owner, b);
}

namespace {

enum BarKind : uint32_t { kSync, kArriveOnly, kPopc, kAnd, kOr };

// o[1] id, o[2] threads (optional), o[3] predicate of .red, o[0] its result. a[0] BarKind, a[1] aligned.
Next do_bar(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  uint32_t id = 0, threads = 0;
  if (!uniform(m, in.o[1], mask, "the barrier number", &id)) return Next::kFault;
  if (id > 15)
    return m.fault(FaultKind::kBarrier, __builtin_ctz(mask), "barrier number %u is not in 0 to 15", id);
  NamedBarrier& b = m.cta->named[id];
  auto result = [&]() {
    if (in.a[0] == kPopc) {
      uint32_t r[32];
      for (uint32_t& v : r) v = b.done_count;
      store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
    } else if (in.a[0] == kAnd || in.a[0] == kOr) {
      set_predicate(m, in.o[0], (in.a[0] == kAnd ? b.done_and != 0 : b.done_or != 0) ? ~0u : 0u, mask);
    }
    return Next::kNext;
  };
  if (g.step == 1) {
    g.step = 0;
    return result();
  }
  if (in.a[1] && !m.all_live(-1, mask, "a barrier with .aligned (bar.sync)")) return Next::kFault;
  bool whole = !in.o[2].present;
  if (!whole) {
    if (!uniform(m, in.o[2], mask, "the thread count of the barrier", &threads)) return Next::kFault;
    if (threads == 0 || threads % 32) {
      return m.fault(FaultKind::kBarrier, -1,
                     "thread count %u of barrier %u is not a positive multiple of 32", threads, id);
    }
    if (threads > m.warps_per_cta * 32) {
      return m.fault(FaultKind::kBarrier, -1, "barrier %u waits for %u threads, the CTA has %u", id, threads,
                     m.warps_per_cta * 32);
    }
  }
  if (b.arrived == 0) {
    b.whole = whole;
    b.expected = threads;
    b.line = in.line;
  } else if (b.whole != whole || b.expected != threads) {
    return m.fault(FaultKind::kBarrier, -1,
                   "barrier %u is used with %u threads here and with %u by PTX line %u (0: the whole CTA)",
                   id, threads, b.expected, b.line);
  }
  b.arrived += mask == m.warp->live ? 32 : static_cast<uint32_t>(__builtin_popcount(mask));
  if (in.a[0] >= kPopc) {
    uint32_t p = predicate(m, in.o[3]) & mask;
    b.red_count += static_cast<uint32_t>(__builtin_popcount(p));
    if (p != mask) b.red_and = 0;
    if (p) b.red_or = 1;
  }
  m.release_to(b.arriving, m.warp);
  uint32_t expected = b.whole ? m.cta->live_warps * 32 : b.expected;
  ++m.progress;
  if (b.arrived > expected) {
    return m.fault(FaultKind::kBarrier, -1, "more than %u threads arrived at barrier %u", expected, id);
  }
  if (b.arrived == expected) {
    if (in.a[0] != kArriveOnly) m.join(m.warp->clocks, b.arriving);
    m.complete_named(m.cta, b);
    return in.a[0] == kArriveOnly ? Next::kNext : result();
  }
  if (in.a[0] == kArriveOnly) return Next::kNext;
  g.step = 1;
  g.wait.offset = id;
  m.wait_on(WaitKind::kNamedBarrier, &b.waiters);
  return Next::kBlocked;
}

// ---------------------------------------------------------------- cluster barrier

void complete_cluster(Machine& m, Cluster& c) {
  ++c.phase;
  c.arrived = 0;
  c.completed = c.arriving;
  c.arriving.v.assign(2 * m.agents, 0);
  c.arriving.foreign.reset();
  c.arriving.proxy_foreign.reset();
  ++m.progress;
  m.wake(c.waiters);
}

// a[0] relaxed.
Next do_cluster_arrive(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "barrier.cluster.arrive")) return Next::kFault;
  Warp* w = m.warp;
  Cluster& c = *m.cta->cluster;
  if (w->cluster_arrivals != w->cluster_waits) {
    return m.fault(FaultKind::kBarrier, -1,
                   "barrier.cluster.arrive twice without barrier.cluster.wait between");
  }
  if (in.a[0]) {
    if (!w->fence_release.empty()) m.join(c.arriving, w->fence_release);
    ++w->clocks.v[w->agent];
  } else {
    m.release_to(c.arriving, w);
  }
  ++w->cluster_arrivals;
  ++c.arrived;
  ++m.progress;
  if (c.arrived == c.live_warps) complete_cluster(m, c);
  return Next::kNext;
}

Next do_cluster_wait(Machine& m, const Instr&, uint32_t mask) {
  if (!m.all_live(-1, mask, "barrier.cluster.wait")) return Next::kFault;
  Warp* w = m.warp;
  Cluster& c = *m.cta->cluster;
  if (w->cluster_arrivals == w->cluster_waits) {
    return m.fault(FaultKind::kBarrier, -1, "barrier.cluster.wait without barrier.cluster.arrive");
  }
  if (c.phase > w->cluster_waits) {
    ++w->cluster_waits;
    m.acquire_from(w, c.completed);
    return Next::kNext;
  }
  m.wait_on(WaitKind::kCluster, &c.waiters);
  return Next::kBlocked;
}

// ---------------------------------------------------------------- registers

// a[0] registers, a[1] increase.
Next do_setmaxnreg(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "setmaxnreg")) return Next::kFault;
  Warp* w = m.warp;
  uint32_t want = in.a[0];
  if (in.a[1]) {
    if (want < w->register_count) {
      return m.fault(FaultKind::kRegisters, -1, "setmaxnreg.inc to %u registers, but the warp has %u", want,
                     w->register_count);
    }
    int64_t more = int64_t{want} - w->register_count;
    if (more > m.cta->free_registers) {
      m.group->wait.offset = want;
      m.wait_on(WaitKind::kRegisters, &m.cta->register_waiters);
      return Next::kBlocked;
    }
    m.cta->free_registers -= more;
  } else {
    if (want > w->register_count) {
      return m.fault(FaultKind::kRegisters, -1, "setmaxnreg.dec to %u registers, but the warp has %u", want,
                     w->register_count);
    }
    m.cta->free_registers += int64_t{w->register_count} - want;
    m.wake(m.cta->register_waiters);
  }
  w->register_count = want;
  ++m.progress;
  return Next::kNext;
}

}  // namespace

void Machine::cluster_exit(Cluster& c, Warp* w) {
  // Exited threads count as arrived.
  if (w->cluster_arrivals > c.phase && c.arrived) --c.arrived;
  if (c.live_warps && c.arrived == c.live_warps) complete_cluster(*this, c);
}

bool decode_barrier(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;

  if (name == "mbarrier") {
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
      return true;
    }
    if (what == "inval") {
      d.need(1);
      if (cluster) d.fail(d.s.op_text + " is not supported");
      in.fn = do_inval;
      in.a[0] = generic;
      in.o[1] = d.address(d.operand(0), address_space);
      return true;
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
      return true;
    }
    if (what == "expect_tx" || what == "complete_tx") {
      d.need(2);
      in.fn = do_arrive;
      in.a[0] = kNoArrive | (generic ? kGenericAddress : 0u) | (cluster ? kClusterAddress : 0u) |
                (what == "complete_tx" ? kCompleteOnly : 0u);
      in.o[1] = d.address(d.operand(0), address_space);
      in.o[2] = d.src(1, T::kU32);
      return true;
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
      return true;
    }
    if (what == "pending_count") {
      d.need(2);
      in.fn = do_pending_count;
      in.o[0] = d.dst(0, T::kB32);
      in.o[1] = d.src(1, T::kB64);
      return true;
    }
    d.fail("instruction " + d.s.op_text + " is not supported");
  }

  if (name == "bar" || name == "barrier") {
    if (d.mod("warp")) return false;
    if (d.mod("cluster")) {
      std::string what = d.one_of({"arrive", "wait"});
      std::string sem = d.one_of({"release", "relaxed", "acquire"});
      d.mod("aligned");
      d.need(0);
      if (what == "arrive" && sem != "acquire") {
        in.fn = do_cluster_arrive;
        in.a[0] = sem == "relaxed";
        return true;
      }
      if (what == "wait" && (sem.empty() || sem == "acquire")) {
        in.fn = do_cluster_wait;
        return true;
      }
      d.fail("instruction " + d.s.op_text + " is not supported");
    }
    d.mod("cta");
    std::string what = d.one_of({"sync", "arrive", "red"});
    bool aligned = d.mod("aligned") || name == "bar";
    in.fn = do_bar;
    in.a[1] = aligned;
    if (what == "sync") {
      d.need(1, 2);
      in.a[0] = kSync;
      in.o[1] = d.src(0, T::kU32);
      if (d.count() == 2) in.o[2] = d.src(1, T::kU32);
      return true;
    }
    if (what == "arrive") {
      d.need(2);
      in.a[0] = kArriveOnly;
      in.o[1] = d.src(0, T::kU32);
      in.o[2] = d.src(1, T::kU32);
      return true;
    }
    if (what == "red") {
      std::string op = d.one_of({"popc", "and", "or"});
      T t = d.type_in({T::kU32, T::kPred});
      if (op.empty() || (op == "popc") != (t == T::kU32)) d.fail(d.s.op_text + " is not supported");
      d.need(3, 4);
      in.a[0] = op == "popc" ? kPopc : op == "and" ? kAnd : kOr;
      in.o[0] = d.dst(0, t);
      in.o[1] = d.src(1, T::kU32);
      if (d.count() == 4) in.o[2] = d.src(2, T::kU32);
      in.o[3] = d.src_pred(d.operand(d.count() - 1));
      return true;
    }
    d.fail("instruction " + d.s.op_text + " is not supported");
  }

  if (name == "setmaxnreg") {
    std::string what = d.one_of({"inc", "dec"});
    if (what.empty() || !d.mod("sync") || !d.mod("aligned"))
      d.fail("setmaxnreg needs .inc or .dec and .sync.aligned");
    d.type_in({T::kU32});
    d.need(1);
    int64_t registers = d.immediate(0);
    if (registers < 24 || registers > 256 || registers % 8)
      d.fail("setmaxnreg needs a multiple of 8 from 24 to 256, found " + std::to_string(registers));
    in.fn = do_setmaxnreg;
    in.a[0] = static_cast<uint32_t>(registers);
    in.a[1] = what == "inc";
    return true;
  }
  return false;
}

}  // namespace mla::emu

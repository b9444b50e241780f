// SPDX-License-Identifier: Apache-2.0
//
// bar, barrier, barrier.cluster.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/warp.h"

namespace mla::emu {

namespace {

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
    if (!m.finding(Check::kNamedBarriers, FaultKind::kBarrier, -1,
                   "barrier %u is used with %u threads here and with %u by PTX line %u (0: the whole CTA)",
                   id, threads, b.expected, b.line))
      return Next::kFault;
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
    if (!m.finding(Check::kNamedBarriers, FaultKind::kBarrier, -1,
                   "more than %u threads arrived at barrier %u", expected, id))
      return Next::kFault;
  }
  if (b.arrived >= expected) {
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

void complete_cluster(Machine& m, Cluster& c) {
  ++c.phase;
  c.arrived = 0;
  c.completed = c.arriving;
  c.arriving.v.assign(3 * m.agents, 0);
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

void decode_barrier(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  if (d.mod("warp")) return decode_warp_barrier(d);
  if (d.mod("cluster")) {
    std::string what = d.one_of({"arrive", "wait"});
    std::string sem = d.one_of({"release", "relaxed", "acquire"});
    d.mod("aligned");
    d.need(0);
    if (what == "arrive" && sem != "acquire") {
      in.fn = do_cluster_arrive;
      in.a[0] = sem == "relaxed";
      return;
    }
    if (what == "wait" && (sem.empty() || sem == "acquire")) {
      in.fn = do_cluster_wait;
      return;
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
    return;
  }
  if (what == "arrive") {
    d.need(2);
    in.a[0] = kArriveOnly;
    in.o[1] = d.src(0, T::kU32);
    in.o[2] = d.src(1, T::kU32);
    return;
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
    return;
  }
  d.fail("instruction " + d.s.op_text + " is not supported");
}

}  // namespace

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
  b.arriving.v.assign(3 * agents, 0);
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

void Machine::cluster_exit(Cluster& c, Warp* w) {
  // Exited threads count as arrived.
  if (w->cluster_arrivals > c.phase && c.arrived) --c.arrived;
  if (c.live_warps && c.arrived == c.live_warps) complete_cluster(*this, c);
}

void add_barrier_instructions(InstructionTable* table) {
  (*table)["bar"] = decode_barrier;
  (*table)["barrier"] = decode_barrier;
}

}  // namespace mla::emu

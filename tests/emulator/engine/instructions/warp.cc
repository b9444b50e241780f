// SPDX-License-Identifier: Apache-2.0
//
// Instructions whose lanes act together: shuffles, votes, matches, reductions.
#include "tests/emulator/engine/instructions/warp.h"

#include <algorithm>

#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

// Calls f with every set of lanes that act together: the lanes of one member mask, all of which must
// execute the instruction. Lanes that run side by side may be members of different sets, as long as
// those are disjoint. A set whose other lanes are elsewhere in the code waits for them.
template <class F>
Next together(Machine& m, const Opd& members, uint32_t mask, F f) {
  const uint32_t* v = lanes<uint32_t>(m, members);
  const uint32_t live = m.warp->live;
  uint32_t complete = 0, missing = 0;
  uint32_t sets[32], count = 0;
  for (uint32_t left = mask; left;) {
    const uint32_t first = static_cast<uint32_t>(__builtin_ctz(left)), wanted = v[first];
    if (!((wanted >> first) & 1)) {
      return m.fault(FaultKind::kDivergence, static_cast<int>(first),
                     "lane %u executes it, but is not in its member mask 0x%08x", first, wanted);
    }
    const uint32_t here = wanted & mask;
    MLA_FOR_LANES(lane, here) {
      if (v[lane] == wanted) continue;
      if (!((v[lane] >> lane) & 1)) {
        return m.fault(FaultKind::kDivergence, static_cast<int>(lane),
                       "lane %u executes it, but is not in its member mask 0x%08x", lane, v[lane]);
      }
      return m.fault(FaultKind::kDivergence, static_cast<int>(lane),
                     "member mask 0x%08x in lane %u, 0x%08x in lane %u", v[lane], lane, wanted, first);
    }
    const uint32_t absent = wanted & live & ~mask;
    // Lanes of this group whose guard is false never come.
    if (absent & m.group->mask) {
      return m.fault(FaultKind::kDivergence, -1, "lanes 0x%08x of the member mask 0x%08x do not execute it",
                     absent, wanted);
    }
    missing |= absent;
    if (!absent) {
      complete |= here;
      sets[count++] = here;
    }
    left &= ~here;
  }
  if (missing && complete) {  // both parts come back here, each alone
    m.diverge(complete, m.group->pc, m.group->pc, kNowhere);
    return Next::kJump;
  }
  if (missing) {
    if (m.merge_waiting_groups()) return Next::kJump;  // execute again with more lanes
    m.group->wait.offset = missing;
    m.wait_on(WaitKind::kConverge, nullptr);
    return Next::kBlocked;
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (!f(sets[i])) return Next::kFault;
  }
  return Next::kNext;
}

enum Shuffle : uint32_t { kUp, kDown, kBfly, kIdx };

// o[0] d, o[4] p, o[1] a, o[2] b, o[3] c, x[0] member mask; a[0] Shuffle.
Next do_shfl(Machine& m, const Instr& in, uint32_t all) {
  return together(m, in.x[0], all, [&](uint32_t mask) {
    const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]),
                   *c = lanes<uint32_t>(m, in.o[3]);
    uint32_t r[32] = {}, p = 0;
    MLA_FOR_LANES(lane, mask) {
      uint32_t clamp = c[lane] & 31, segment = (c[lane] >> 8) & 31, value = b[lane] & 31;
      uint32_t max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
      int32_t from = 0;
      bool ok = false;
      switch (in.a[0]) {
        case kUp:
          from = static_cast<int32_t>(lane) - static_cast<int32_t>(value);
          ok = from >= static_cast<int32_t>(max_lane);
          break;
        case kDown:
          from = static_cast<int32_t>(lane + value);
          ok = from <= static_cast<int32_t>(max_lane);
          break;
        case kBfly:
          from = static_cast<int32_t>(lane ^ value);
          ok = from <= static_cast<int32_t>(max_lane);
          break;
        default:
          from = static_cast<int32_t>(min_lane | (value & ~segment));
          ok = from <= static_cast<int32_t>(max_lane);
      }
      if (!ok) from = static_cast<int32_t>(lane);
      if (!((mask >> from) & 1)) {
        m.fault(FaultKind::kDivergence, static_cast<int>(lane),
                (all >> from) & 1 ? "shuffle reads lane %d, which is not in its member mask"
                                  : "shuffle reads lane %d, which does not execute it",
                from);
        return false;
      }
      r[lane] = a[from];
      p |= static_cast<uint32_t>(ok) << lane;
    }
    if (in.o[4].present) set_predicate(m, in.o[4], p, mask);
    store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
    return true;
  });
}

enum Vote : uint32_t { kAll, kAny, kUni, kBallot };

// o[0] d, o[1] p, x[0] member mask.
Next do_vote(Machine& m, const Instr& in, uint32_t all) {
  return together(m, in.x[0], all, [&](uint32_t mask) {
    uint32_t p = predicate(m, in.o[1]) & mask;
    if (in.a[0] == kBallot) {
      uint32_t r[32];
      for (uint32_t& v : r) v = p;
      store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
    } else {
      bool v = in.a[0] == kAll ? p == mask : in.a[0] == kAny ? p != 0 : p == mask || p == 0;
      set_predicate(m, in.o[0], v ? ~0u : 0u, mask);
    }
    return true;
  });
}

// match: a[0] 1: all; a[1] 1: 64 bits. o[0] d, o[4] p, o[1] a.
Next do_match(Machine& m, const Instr& in, uint32_t all) {
  return together(m, in.x[0], all, [&](uint32_t mask) {
    auto value = [&](uint32_t lane) {
      return in.a[1] ? lanes<uint64_t>(m, in.o[1])[lane] : lanes<uint32_t>(m, in.o[1])[lane];
    };
    uint32_t r[32] = {};
    bool all = true;
    MLA_FOR_LANES(lane, mask) {
      MLA_FOR_LANES(other, mask) {
        if (value(lane) == value(other)) r[lane] |= 1u << other;
      }
      all &= r[lane] == mask;
    }
    if (in.a[0]) {
      for (uint32_t& v : r) v = all ? mask : 0;
      if (in.o[4].present) set_predicate(m, in.o[4], all ? ~0u : 0u, mask);
    }
    store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
    return true;
  });
}

Next do_activemask(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t r[32];
  for (uint32_t& v : r) v = mask;
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

// The lowest lane is elected. o[0] d (present or not), o[4] p.
Next do_elect(Machine& m, const Instr& in, uint32_t all) {
  return together(m, in.x[0], all, [&](uint32_t mask) {
    uint32_t leader = static_cast<uint32_t>(__builtin_ctz(mask));
    uint32_t r[32];
    for (uint32_t& v : r) v = leader;
    if (in.o[0].present) store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
    set_predicate(m, in.o[4], 1u << leader, mask);
    return true;
  });
}

enum Redux : uint32_t { kAdd, kMin, kMax, kMinS, kMaxS, kAnd, kOr, kXor };

Next do_redux(Machine& m, const Instr& in, uint32_t all) {
  return together(m, in.x[0], all, [&](uint32_t mask) {
    const uint32_t* a = lanes<uint32_t>(m, in.o[1]);
    uint32_t v = a[__builtin_ctz(mask)];
    bool first = true;
    MLA_FOR_LANES(lane, mask) {
      if (first) {
        first = false;
        continue;
      }
      uint32_t y = a[lane];
      switch (in.a[0]) {
        case kAdd:
          v += y;
          break;
        case kMin:
          v = std::min(v, y);
          break;
        case kMax:
          v = std::max(v, y);
          break;
        case kMinS:
          v = static_cast<uint32_t>(std::min(static_cast<int32_t>(v), static_cast<int32_t>(y)));
          break;
        case kMaxS:
          v = static_cast<uint32_t>(std::max(static_cast<int32_t>(v), static_cast<int32_t>(y)));
          break;
        case kAnd:
          v &= y;
          break;
        case kOr:
          v |= y;
          break;
        default:
          v ^= y;
      }
    }
    uint32_t r[32];
    for (uint32_t& w : r) w = v;
    store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
    return true;
  });
}

Next do_warp_sync(Machine& m, const Instr& in, uint32_t mask) {
  return together(m, in.x[0], mask, [](uint32_t) { return true; });
}

void decode_shfl(Decoder& d) {
  Instr& in = d.in;
  auto members = [&](size_t i) { d.pool({d.src(i, T::kB32)}); };
  if (!d.mod("sync")) d.fail("shfl needs .sync");
  std::string mode = d.one_of({"up", "down", "bfly", "idx"});
  d.type_in({T::kB32});
  if (mode.empty()) d.fail("shfl needs .up, .down, .bfly or .idx");
  d.need(5);
  in.fn = do_shfl;
  in.a[0] = mode == "up" ? kUp : mode == "down" ? kDown : mode == "bfly" ? kBfly : kIdx;
  const Operand& to = d.operand(0);
  if (to.kind == Operand::kPair) {
    in.o[0] = d.dst(to.parts[0], 32);
    in.o[4] = d.dst(to.parts[1], 1);
  } else {
    in.o[0] = d.dst(to, 32);
  }
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kB32);
  members(4);
}

void decode_vote(Decoder& d) {
  Instr& in = d.in;
  auto members = [&](size_t i) { d.pool({d.src(i, T::kB32)}); };
  if (!d.mod("sync")) d.fail("vote needs .sync");
  std::string mode = d.one_of({"all", "any", "uni", "ballot"});
  T t = d.type_in({T::kPred, T::kB32});
  if (mode.empty() || (mode == "ballot") != (t == T::kB32)) d.fail(d.s.op_text + " is not supported");
  d.need(3);
  in.fn = do_vote;
  in.a[0] = mode == "all" ? kAll : mode == "any" ? kAny : mode == "uni" ? kUni : kBallot;
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src_pred(d.operand(1));
  members(2);
}

void decode_match(Decoder& d) {
  Instr& in = d.in;
  auto members = [&](size_t i) { d.pool({d.src(i, T::kB32)}); };
  std::string mode = d.one_of({"any", "all"});
  if (!d.mod("sync") || mode.empty()) d.fail(d.s.op_text + " is not supported");
  T t = d.type_in({T::kB32, T::kB64});
  d.need(3);
  in.fn = do_match;
  in.a[0] = mode == "all";
  in.a[1] = t == T::kB64;
  const Operand& to = d.operand(0);
  if (to.kind == Operand::kPair) {
    in.o[0] = d.dst(to.parts[0], 32);
    in.o[4] = d.dst(to.parts[1], 1);
  } else {
    in.o[0] = d.dst(to, 32);
  }
  in.o[1] = d.src(1, t);
  members(2);
}

void decode_activemask(Decoder& d) {
  Instr& in = d.in;
  d.type_in({T::kB32});
  d.need(1);
  in.fn = do_activemask;
  in.o[0] = d.dst(0, T::kB32);
}

void decode_elect(Decoder& d) {
  Instr& in = d.in;
  auto members = [&](size_t i) { d.pool({d.src(i, T::kB32)}); };
  if (!d.mod("sync")) d.fail("elect needs .sync");
  d.need(2);
  const Operand& to = d.operand(0);
  if (to.kind != Operand::kPair) d.fail("elect.sync needs a register (or _) and a predicate");
  in.fn = do_elect;
  if (to.parts[0].kind != Operand::kSink) in.o[0] = d.dst(to.parts[0], 32);
  in.o[4] = d.dst(to.parts[1], 1);
  members(1);
}

void decode_redux(Decoder& d) {
  Instr& in = d.in;
  auto members = [&](size_t i) { d.pool({d.src(i, T::kB32)}); };
  if (!d.mod("sync")) d.fail("redux needs .sync");
  std::string op = d.one_of({"add", "min", "max", "and", "or", "xor"});
  T t = d.type_in({T::kU32, T::kS32, T::kB32});
  d.need(3);
  in.fn = do_redux;
  bool s = t == T::kS32;
  in.a[0] = op == "add"   ? kAdd
            : op == "min" ? (s ? kMinS : kMin)
            : op == "max" ? (s ? kMaxS : kMax)
            : op == "and" ? kAnd
            : op == "or"  ? kOr
                          : kXor;
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  members(2);
}

}  // namespace

void decode_warp_barrier(Decoder& d) {
  Instr& in = d.in;
  auto members = [&](size_t i) { d.pool({d.src(i, T::kB32)}); };
  if (!d.mod("sync")) d.fail("bar.warp needs .sync");
  d.need(1);
  in.fn = do_warp_sync;
  members(0);
}

void add_warp_instructions(InstructionTable* table) {
  (*table)["shfl"] = decode_shfl;
  (*table)["vote"] = decode_vote;
  (*table)["match"] = decode_match;
  (*table)["activemask"] = decode_activemask;
  (*table)["elect"] = decode_elect;
  (*table)["redux"] = decode_redux;
}

}  // namespace mla::emu

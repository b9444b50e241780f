// SPDX-License-Identifier: Apache-2.0
//
// Addresses: conversions between state spaces and CTAs; prefetches and cache policies, which do nothing.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/memory_ops.h"

namespace mla::emu {

namespace {

// cvta: o[0] = o[1] + imm (to generic) or - imm.
template <class X>
Next do_offset(Machine& m, const Instr& in, uint32_t mask) {
  const X* a = lanes<X>(m, in.o[1]);
  X r[32];
  for (int i = 0; i < 32; ++i) r[i] = a[i] + static_cast<X>(in.imm);
  store_lanes(lanes<X>(m, in.o[0]), r, mask);
  return Next::kNext;
}

// o[0] predicate, o[1] generic address; a[0] space.
Next do_isspacep(Machine& m, const Instr& in, uint32_t mask) {
  const uint64_t* a = lanes<uint64_t>(m, in.o[1]);
  uint32_t r = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    uint64_t window = a[i] >> 36 << 36;
    bool is = false;
    switch (in.a[0]) {
      case 0:
        is = window != kSharedWindow && window != kLocalWindow && window != kParamWindow;
        break;
      case 1:
        is = window == kSharedWindow;
        break;   // shared::cluster
      case 2: {  // shared::cta
        uint32_t low = static_cast<uint32_t>(a[i]);
        is = window == kSharedWindow && (low >> kRankShift == 0 || (low >> kRankShift) - 1 == m.cta->rank);
        break;
      }
      case 3:
        is = window == kLocalWindow;
        break;
      case 4:
        is = window == kParamWindow;
        break;
      case 5:
        is = window == kConstWindow;
        break;
    }
    r |= static_cast<uint32_t>(is) << i;
  }
  set_predicate(m, in.o[0], r, mask);
  return Next::kNext;
}

// mapa: a[0] 1: generic 64-bit addresses; a[1] 1: 64-bit registers. The address of the same variable in
// another CTA of the cluster.
Next do_mapa(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t* rank = lanes<uint32_t>(m, in.o[2]);
  MLA_FOR_LANES(lane, mask) {
    uint64_t a = in.a[1] ? lanes<uint64_t>(m, in.o[1])[lane] : lanes<uint32_t>(m, in.o[1])[lane];
    a += static_cast<uint64_t>(in.imm);
    uint64_t window = 0;
    if (in.a[0]) {
      window = kSharedWindow;
      if (a >> 36 << 36 != kSharedWindow) {
        return m.fault(FaultKind::kInstruction, static_cast<int>(lane),
                       "mapa of 0x%llx, which is no generic address of shared memory",
                       static_cast<unsigned long long>(a));
      }
      a -= kSharedWindow;
    }
    if (rank[lane] >= m.cluster_size) {
      return m.fault(FaultKind::kOutOfBounds, static_cast<int>(lane),
                     "mapa to CTA rank %u of a cluster of %u CTAs", rank[lane], m.cluster_size);
    }
    uint64_t r = window + ((uint64_t{rank[lane]} + 1) << kRankShift | (a & kOffsetMask));
    if (in.a[1]) {
      lanes<uint64_t>(m, in.o[0])[lane] = r;
    } else {
      lanes<uint32_t>(m, in.o[0])[lane] = static_cast<uint32_t>(r);
    }
  }
  return Next::kNext;
}

Next do_getctarank(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    uint64_t a = in.a[1] ? lanes<uint64_t>(m, in.o[1])[lane] : lanes<uint32_t>(m, in.o[1])[lane];
    uint32_t coded = static_cast<uint32_t>(a) >> kRankShift;
    lanes<uint32_t>(m, in.o[0])[lane] = coded ? coded - 1 : m.cta->rank;
  }
  return Next::kNext;
}

Next do_prefetch(Machine&, const Instr&, uint32_t) { return Next::kNext; }

// createpolicy: an opaque value.
Next do_policy(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t r[32];
  for (int i = 0; i < 32; ++i) r[i] = 0x12f0000000000000u;
  store_lanes(lanes<uint64_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

void decode_cvta(Decoder& d) {
  Instr& in = d.in;
  bool to = d.mod("to");
  std::string space = d.one_of(
      {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"});
  T t = d.type_in({T::kU64, T::kU32});
  if (space.empty()) d.fail("cvta needs a state space");
  d.need(2);
  if (t != T::kU64) d.fail("cvta.u32 is not supported: addresses have 64 bits");
  uint64_t window = space == "global"               ? 0
                    : space.rfind("shared", 0) == 0 ? kSharedWindow
                    : space == "local"              ? kLocalWindow
                    : space == "const"              ? kConstWindow
                                                    : kParamWindow;
  in.fn = do_offset<uint64_t>;
  in.imm = static_cast<int64_t>(to ? 0 - window : window);
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
}

void decode_isspacep(Decoder& d) {
  Instr& in = d.in;
  std::string space = d.one_of(
      {"global", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "const"});
  if (space.empty()) d.fail("isspacep needs a state space");
  d.need(2);
  in.fn = do_isspacep;
  in.a[0] = space == "global"               ? 0
            : space == "shared::cluster"    ? 1
            : space.rfind("shared", 0) == 0 ? 2
            : space == "local"              ? 3
            : space == "const"              ? 5
                                            : 4;
  in.o[0] = d.dst(0, T::kPred);
  in.o[1] = d.src(1, T::kU64);
}

void decode_mapa(Decoder& d) {
  Instr& in = d.in;
  bool shared = d.mod("shared::cluster");
  T t = d.type_in({T::kU32, T::kU64});
  d.need(3);
  if (!shared && t == T::kU32) d.fail("mapa of generic addresses needs .u64");
  in.fn = do_mapa;
  in.a[0] = !shared;
  in.a[1] = t == T::kU64;
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, T::kU32);
}

void decode_getctarank(Decoder& d) {
  Instr& in = d.in;
  d.mod("shared::cluster");
  T t = d.type_in({T::kU32, T::kU64});
  d.need(2);
  in.fn = do_getctarank;
  in.a[1] = t == T::kU64;
  in.o[0] = d.dst(0, T::kU32);
  in.o[1] = d.src(1, t);
}

void decode_prefetch(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  d.one_of({"global", "local", "const", "param"});
  d.one_of({"L1", "L2", "tensormap", "L2::evict_last", "L2::evict_normal"});
  d.mod("L2::128B");
  if (name == "discard") d.fail("discard is not supported");
  d.need(1, 2);
  in.fn = do_prefetch;
  in.o[1] = d.address(d.operand(0), Space::kGeneric);
}

void decode_createpolicy(Decoder& d) {
  Instr& in = d.in;
  if (d.mod("range")) d.fail("createpolicy.range is not supported");
  d.mod("fractional");
  d.one_of({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"});
  d.one_of({"L2::evict_first", "L2::evict_unchanged"});
  d.type_in({T::kB64});
  d.need(1, 2);
  in.fn = do_policy;
  in.o[0] = d.dst(0, T::kB64);
  d.pool(std::vector<Opd>());
}

}  // namespace

void add_address_instructions(InstructionTable* table) {
  (*table)["cvta"] = decode_cvta;
  (*table)["isspacep"] = decode_isspacep;
  (*table)["mapa"] = decode_mapa;
  (*table)["getctarank"] = decode_getctarank;
  (*table)["createpolicy"] = decode_createpolicy;
  (*table)["prefetch"] = decode_prefetch;
  (*table)["prefetchu"] = decode_prefetch;
  (*table)["applypriority"] = decode_prefetch;
  (*table)["discard"] = decode_prefetch;
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// ld, st, atom, red, address conversions, cache control.
#include "tests/emulator/engine/memory_ops.h"

#include <bit>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/fp.h"

namespace mla::emu {

namespace {

enum LdFlags : uint32_t { kWideTarget = 1, kSignExtend = 2, kTarget16 = 4 };
enum OrderFlags : uint32_t { kStrongOrder = 1, kAcquire = 2, kRelease = 4, kClusterSpace = 8 };
constexpr uint32_t kFrameSpace = 100;

uint8_t* frame_of(Machine& m, uint32_t lane) {
  return m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
}

// x: targets (or o[0]); o[1]: address; a[0] space, a[1] bytes of an element, a[2] LdFlags,
// a[3] OrderFlags.
Next do_ld(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t n = in.nx, element = in.a[1], total = n * element;
  const bool frame = in.a[0] == kFrameSpace;
  const Space space = static_cast<Space>(in.a[0]);
  const uint32_t access = kRead | (in.a[3] & kStrongOrder ? kStrong : 0u);
  const bool narrow = space == Space::kShared;
  uint8_t buffer[32][64];
  MLA_FOR_LANES(lane, mask) {
    const uint8_t* p;
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, narrow);
    if (frame) {
      p = frame_of(m, lane) + address;
    } else {
      p = m.resolve(static_cast<int>(lane), space, in.a[3] & kClusterSpace, address, total, access);
      if (!p) return Next::kFault;
      if (access & kStrong) m.sync_acquire(sync_key(m, space, address), in.a[3] & kAcquire);
    }
    std::memcpy(buffer[lane], p, total);
  }
  for (uint32_t k = 0; k < n; ++k) {
    uint8_t* target = operand_at(m, in.x[k]);
    if (element == 16) {
      MLA_FOR_LANES(lane, mask) {
        std::memcpy(target + lane * 8, buffer[lane] + k * 16, 8);
        std::memcpy(target + 256 + lane * 8, buffer[lane] + k * 16 + 8, 8);
      }
      continue;
    }
    MLA_FOR_LANES(lane, mask) {
      uint64_t v = 0;
      std::memcpy(&v, buffer[lane] + k * element, element);
      if (in.a[2] & kSignExtend) {
        uint32_t shift = 64 - 8 * element;
        v = static_cast<uint64_t>(static_cast<int64_t>(v << shift) >> shift);
      }
      if (in.a[2] & kWideTarget) {
        std::memcpy(target + lane * 8, &v, 8);
      } else {
        uint32_t w = static_cast<uint32_t>(v);
        if (in.a[2] & kTarget16) w &= 0xffff;
        std::memcpy(target + lane * 4, &w, 4);
      }
    }
  }
  return Next::kNext;
}

Next do_st(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t n = in.nx, element = in.a[1], total = n * element;
  const bool frame = in.a[0] == kFrameSpace;
  const Space space = static_cast<Space>(in.a[0]);
  const uint32_t access = kWrite | (in.a[3] & kStrongOrder ? kStrong : 0u);
  const bool narrow = space == Space::kShared;
  MLA_FOR_LANES(lane, mask) {
    uint8_t* p;
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, narrow);
    if (frame) {
      p = frame_of(m, lane) + address;
    } else {
      p = m.resolve(static_cast<int>(lane), space, in.a[3] & kClusterSpace, address, total, access);
      if (!p) return Next::kFault;
      if (access & kStrong) m.sync_release(sync_key(m, space, address), in.a[3] & kRelease, false);
    }
    for (uint32_t k = 0; k < n; ++k) {
      const uint8_t* source = operand_at(m, in.x[k]);
      if (element == 16) {
        std::memcpy(p + k * 16, source + lane * 8, 8);
        std::memcpy(p + k * 16 + 8, source + 256 + lane * 8, 8);
      } else {
        std::memcpy(p + k * element, source + lane * (in.a[2] & kWideTarget ? 8 : 4), element);
      }
    }
  }
  return Next::kNext;
}

// o[0] result (atom), o[1] address, x: b (and c). a[0] space, a[1] operation, a[2] type, a[3] order.
Next do_atom(Machine& m, const Instr& in, uint32_t mask) {
  const T t = static_cast<T>(in.a[2]);
  const uint32_t bytes = bits_of(t) / 8;
  const Space space = static_cast<Space>(in.a[0]);
  const AtomOp op = static_cast<AtomOp>(in.a[1] & 255);
  const uint32_t elements = in.a[1] >> 8;  // vector forms
  const uint32_t total = bytes * elements;
  const bool cas = op == AtomOp::kCas;
  const bool wide = bytes == 8;
  // Lanes act one after the other, from any lane on.
  uint32_t first = m.rng.below(32);
  for (uint32_t k = 0; k < 32; ++k) {
    uint32_t lane = (first + k) & 31;
    if (!((mask >> lane) & 1)) continue;
    uint64_t address = lane_address(m, in.o[1], in.imm, lane, space == Space::kShared);
    uint8_t* p = m.resolve(static_cast<int>(lane), space, in.a[3] & kClusterSpace, address, total,
                           kRead | kWrite | kStrong);
    if (!p) return Next::kFault;
    uint64_t key = sync_key(m, space, address);
    // Float additions in global memory flush subnormals, those in shared memory do not.
    const bool in_global =
        space == Space::kGlobal || (space == Space::kGeneric && address >> 36 << 36 != kSharedWindow);
    m.sync_acquire(key, in.a[3] & kAcquire);
    m.sync_release(key, in.a[3] & kRelease, true);
    bool changed = false;
    for (uint32_t e = 0; e < elements; ++e) {
      uint64_t old = 0, b = 0, c = 0;
      std::memcpy(&old, p + e * bytes, bytes);
      auto read = [&](const Opd& o, uint64_t* v) {
        std::memcpy(v, operand_at(m, o) + lane * (wide ? 8 : 4), bytes);
      };
      read(in.x[e], &b);
      if (cas) read(in.x[1], &c);
      uint64_t now = atom_apply(op, t, old, b, c, in_global);
      std::memcpy(p + e * bytes, &now, bytes);
      uint64_t stored = 0;
      std::memcpy(&stored, p + e * bytes, bytes);
      changed |= stored != old;
      if (in.o[0].present) {
        const Opd& target = elements == 1 ? in.o[0] : in.x[elements + e];
        std::memset(operand_at(m, target) + lane * (wide ? 8 : 4), 0, wide ? 8 : 4);
        std::memcpy(operand_at(m, target) + lane * (wide ? 8 : 4), &old, bytes);
      }
    }
    if (!changed) --m.progress;
  }
  return Next::kNext;
}

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

Next do_fence(Machine& m, const Instr& in, uint32_t) {
  if (in.a[0] == 1) {
    m.proxy_fence(m.warp);
  } else if (in.a[0] == 2) {
    for (auto& c : m.cta->cluster->ctas) {
      for (auto& [offset, barrier] : c->mbarriers) {
        if (barrier->init_agent == m.warp->agent) barrier->init_fenced = true;
      }
    }
  } else if (in.a[0] == 0) {
    m.fence(m.warp);
    for (auto& c : m.cta->cluster->ctas) {
      for (auto& [offset, barrier] : c->mbarriers) {
        if (barrier->init_agent == m.warp->agent) barrier->init_fenced = true;
      }
    }
  }
  return Next::kNext;
}

struct SpaceChoice {
  Space space;
  bool cluster;
};

SpaceChoice space_of(Decoder& d, bool param_too) {
  std::string name = d.one_of({"global", "shared", "shared::cta", "shared::cluster", "local", "const",
                               "param", "param::entry", "param::func"});
  if (name.empty()) return {Space::kGeneric, true};
  if (name == "global") return {Space::kGlobal, false};
  if (name == "shared" || name == "shared::cta") return {Space::kShared, false};
  if (name == "shared::cluster") return {Space::kShared, true};
  if (name == "local") return {Space::kLocal, false};
  if (name == "const") return {Space::kConst, false};
  if (!param_too) d.fail("state space ." + name + " is not supported for " + d.name());
  return {Space::kParam, false};
}

void cache_modifiers(Decoder& d, bool load) {
  d.one_of(
      {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
  d.one_of({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
  if (load) {
    d.one_of({"L2::64B", "L2::128B", "L2::256B"});
    d.one_of({"ca", "cg", "cs", "lu", "cv"});
  } else {
    d.one_of({"wb", "cg", "cs", "wt"});
  }
}

std::vector<Opd> no_operands() { return {}; }

}  // namespace

// ---------------------------------------------------------------- shared with async.cc

uint64_t sync_key(const Machine& m, Space space, uint64_t address) {
  if (space == Space::kGeneric) {
    if (address >> 36 << 36 != kSharedWindow) return address;
    address -= kSharedWindow;
  } else if (space != Space::kShared) {
    return address;
  }
  uint64_t rank = address >> kRankShift ? (address >> kRankShift) - 1 : m.cta->rank;
  return uint64_t{1} << 63 | (m.cta->cluster->index * m.cluster_size + rank) << kRankShift |
         (address & kOffsetMask);
}

uint64_t atom_apply(AtomOp op, T t, uint64_t old, uint64_t b, uint64_t c, bool flush_f32) {
  auto integer = [&]<class X>(X) -> uint64_t {
    X x = static_cast<X>(old), y = static_cast<X>(b);
    X r = x;
    switch (op) {
      case AtomOp::kAdd:
        r = static_cast<X>(static_cast<std::make_unsigned_t<X>>(x) + static_cast<std::make_unsigned_t<X>>(y));
        break;
      case AtomOp::kMin:
        r = x < y ? x : y;
        break;
      case AtomOp::kMax:
        r = x > y ? x : y;
        break;
      case AtomOp::kAnd:
        r = x & y;
        break;
      case AtomOp::kOr:
        r = x | y;
        break;
      case AtomOp::kXor:
        r = x ^ y;
        break;
      case AtomOp::kExch:
        r = y;
        break;
      case AtomOp::kCas:
        r = x == y ? static_cast<X>(c) : x;
        break;
      case AtomOp::kInc:
        r = x >= y ? 0 : static_cast<X>(x + 1);
        break;
      case AtomOp::kDec:
        r = x == 0 || x > y ? y : static_cast<X>(x - 1);
        break;
    }
    return static_cast<uint64_t>(static_cast<std::make_unsigned_t<X>>(r));
  };
  switch (t) {
    case T::kF32: {
      float x = f32_from(static_cast<uint32_t>(old)), y = f32_from(static_cast<uint32_t>(b));
      if (flush_f32) return f32_bits(flush(canonical(flush(x) + flush(y))));
      return f32_bits(canonical(x + y));
    }
    case T::kF64: {
      // A NaN that is added passes as it is.
      double x = std::bit_cast<double>(old), y = std::bit_cast<double>(b), r = x + y;
      return std::bit_cast<uint64_t>(r != r ? (y != y ? y : nan_of(x, y)) : r);
    }
    case T::kF16:
    case T::kF16x2:
    case T::kBF16:
    case T::kBF16x2: {
      uint64_t r = 0;
      bool bf = t == T::kBF16 || t == T::kBF16x2;
      for (uint32_t i = 0; i < bits_of(t) / 16; ++i) {
        uint16_t x = static_cast<uint16_t>(old >> (16 * i)), y = static_cast<uint16_t>(b >> (16 * i));
        float fx = bf ? bf16_to_f32(x) : f16_to_f32(x), fy = bf ? bf16_to_f32(y) : f16_to_f32(y);
        double v = double{fx} + fy;
        if (op == AtomOp::kMin) v = fx != fx ? fy : fy != fy ? fx : fx < fy ? fx : fy;
        if (op == AtomOp::kMax) v = fx != fx ? fy : fy != fy ? fx : fx > fy ? fx : fy;
        r |= uint64_t{bf ? bf16_from_double(v) : f16_from_double(v)} << (16 * i);
      }
      return r;
    }
    case T::kU64:
    case T::kB64:
      return integer(uint64_t{});
    case T::kS64:
      return integer(int64_t{});
    case T::kS32:
      return integer(int32_t{});
    case T::kB16:
      return integer(uint16_t{});
    default:
      return integer(uint32_t{});
  }
}

AtomOp atom_op(Decoder& d) {
  std::string name = d.one_of({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"});
  static const std::map<std::string, AtomOp> ops = {
      {"add", AtomOp::kAdd}, {"min", AtomOp::kMin}, {"max", AtomOp::kMax},   {"and", AtomOp::kAnd},
      {"or", AtomOp::kOr},   {"xor", AtomOp::kXor}, {"exch", AtomOp::kExch}, {"cas", AtomOp::kCas},
      {"inc", AtomOp::kInc}, {"dec", AtomOp::kDec}};
  if (name.empty()) d.fail("no operation in " + d.s.op_text);
  return ops.at(name);
}

bool decode_memory(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;

  if (name == "st" && d.s.op.size() > 1 && d.s.op[1] == "async") return false;
  if (name == "ld" || name == "ldu" || name == "st") {
    bool load = name != "st";
    std::string sem = d.one_of({"weak", "relaxed", "acquire", "release", "volatile", "mmio"});
    std::string scope = d.one_of({"cta", "cluster", "gpu", "sys"});
    if (load && sem == "release") d.fail("ld.release does not exist");
    if (!load && sem == "acquire") d.fail("st.acquire does not exist");
    d.mod("nc");
    SpaceChoice space = space_of(d, true);
    cache_modifiers(d, load);
    bool hint = d.mod("L2::cache_hint");
    std::string vec = d.one_of({"v2", "v4", "v8"});
    T t = d.type();
    uint32_t bits = bits_of(t);
    if (bits < 8 || t == T::kF16x2 || t == T::kBF16x2 ||
        (bits == 8 && t != T::kB8 && t != T::kU8 && t != T::kS8)) {
      d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
    }
    d.need(hint ? 3 : 2);
    uint32_t n = vec.empty() ? 1 : vec == "v2" ? 2 : vec == "v4" ? 4 : 8;
    if (n * bits > 256) d.fail("vector of " + std::to_string(n * bits) + " bits is not supported");
    const Operand& values = d.operand(load ? 0 : 1);
    const Operand& address = d.operand(load ? 1 : 0);
    if ((values.kind == Operand::kVector) != (n > 1))
      d.fail(d.s.op_text + " needs " + std::to_string(n) + " registers");
    auto elements = d.elements(values);
    if (elements.size() != n)
      d.fail(d.s.op_text + " needs " + std::to_string(n) + " registers, found " +
             std::to_string(elements.size()));
    in.fn = load ? do_ld : do_st;
    in.a[0] = static_cast<uint32_t>(space.space);
    in.a[1] = bits / 8;
    if (space.cluster) in.a[3] |= kClusterSpace;
    if (!sem.empty() && sem != "weak") in.a[3] |= kStrongOrder;
    if (sem == "acquire") in.a[3] |= kAcquire;
    if (sem == "release") in.a[3] |= kRelease;
    in.o[1] = d.address(address, space.space);
    if (space.space == Space::kParam) {
      const Operand* base = address.parts.empty() ? nullptr : &address.parts[0];
      bool formal = base && base->kind == Operand::kSymbol && d.function().entry &&
                    base->symbol->offset < d.function().info.param_bytes;
      if (base && base->kind == Operand::kSymbol && !formal) {
        in.a[0] = kFrameSpace;
        in.imm += d.frame_base();
      } else if (!load) {
        d.fail("store to a kernel parameter");
      }
    }
    uint32_t target_bits = 0;
    std::vector<Opd> operands;
    for (const Operand* element : elements) {
      uint32_t have = element->kind == Operand::kReg ? d.register_bits(element->reg) : bits;
      if (target_bits && have != target_bits && element->kind == Operand::kReg)
        d.fail("registers of different widths in one vector");
      target_bits = have;
      operands.push_back(load ? d.dst(*element, bits, true) : d.src(*element, t, true));
    }
    if (target_bits == 64) in.a[2] |= kWideTarget;
    if (target_bits == 128 && bits != 128) d.fail("128-bit register in " + d.s.op_text);
    if (load && is_signed(t)) in.a[2] |= kSignExtend;
    if (load && target_bits == 16) in.a[2] |= kTarget16;
    d.pool(std::move(operands));
    return true;
  }
  if (name == "atom" || name == "red") {
    if (d.mod("async")) return false;
    std::string sem = d.one_of({"relaxed", "acquire", "release", "acq_rel"});
    d.one_of({"cta", "cluster", "gpu", "sys"});
    SpaceChoice space = space_of(d, false);
    AtomOp op = atom_op(d);
    d.mod("noftz");
    bool hint = d.mod("L2::cache_hint");
    std::string vec = d.one_of({"v2", "v4", "v8"});
    T t = d.type();
    bool arithmetic_float = is_float(t) || t == T::kF16x2 || t == T::kBF16x2;
    if (arithmetic_float && op != AtomOp::kAdd &&
        !((op == AtomOp::kMin || op == AtomOp::kMax) && bits_of(t) != 64 && t != T::kF32)) {
      d.fail(d.s.op_text + " is not supported");
    }
    if (bits_of(t) > 64 || (bits_of(t) < 32 && t != T::kB16 && t != T::kF16 && t != T::kBF16))
      d.fail(d.s.op_text + " is not supported");
    bool atom = name == "atom";
    bool cas = op == AtomOp::kCas;
    uint32_t n = vec.empty() ? 1 : vec == "v2" ? 2 : vec == "v4" ? 4 : 8;
    if (n > 1 && (cas || !arithmetic_float)) d.fail("vector form of " + d.s.op_text + " is not supported");
    d.need((atom ? 2u : 1u) + (cas ? 2u : 1u) + (hint ? 1u : 0u));
    size_t at = 0;
    std::vector<Opd> operands, results;
    if (atom) {
      for (const Operand* o : d.elements(d.operand(at))) results.push_back(d.dst(*o, bits_of(t)));
      ++at;
    }
    in.o[1] = d.address(d.operand(at++), space.space);
    for (const Operand* o : d.elements(d.operand(at))) operands.push_back(d.src(*o, t));
    if (operands.size() != n) d.fail(d.s.op_text + " needs " + std::to_string(n) + " values");
    if (cas) operands.push_back(d.src(d.operand(at + 1), t));
    if (atom) {
      in.o[0] = results[0];
      if (n > 1) operands.insert(operands.end(), results.begin(), results.end());
    }
    in.fn = do_atom;
    in.a[0] = static_cast<uint32_t>(space.space);
    in.a[1] = static_cast<uint32_t>(op) | n << 8;
    in.a[2] = static_cast<uint32_t>(t);
    in.a[3] = (space.cluster ? kClusterSpace : 0u) | kStrongOrder |
              (sem == "acquire" || sem == "acq_rel" ? kAcquire : 0u) |
              (sem == "release" || sem == "acq_rel" ? kRelease : 0u);
    d.pool(std::move(operands));
    return true;
  }
  if (name == "cvta") {
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
    return true;
  }
  if (name == "isspacep") {
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
    return true;
  }
  if (name == "mapa") {
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
    return true;
  }
  if (name == "getctarank") {
    d.mod("shared::cluster");
    T t = d.type_in({T::kU32, T::kU64});
    d.need(2);
    in.fn = do_getctarank;
    in.a[1] = t == T::kU64;
    in.o[0] = d.dst(0, T::kU32);
    in.o[1] = d.src(1, t);
    return true;
  }
  if (name == "prefetch" || name == "prefetchu" || name == "applypriority" || name == "discard") {
    d.one_of({"global", "local", "const", "param"});
    d.one_of({"L1", "L2", "tensormap", "L2::evict_last", "L2::evict_normal"});
    d.mod("L2::128B");
    if (name == "discard") d.fail("discard is not supported");
    d.need(1, 2);
    in.fn = do_prefetch;
    in.o[1] = d.address(d.operand(0), Space::kGeneric);
    return true;
  }
  if (name == "createpolicy") {
    if (d.mod("range")) d.fail("createpolicy.range is not supported");
    d.mod("fractional");
    d.one_of({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"});
    d.one_of({"L2::evict_first", "L2::evict_unchanged"});
    d.type_in({T::kB64});
    d.need(1, 2);
    in.fn = do_policy;
    in.o[0] = d.dst(0, T::kB64);
    d.pool(no_operands());
    return true;
  }
  if (name == "fence" || name == "membar") {
    d.need(0, 2);
    in.fn = do_fence;
    if (d.mod("proxy")) {
      std::string which =
          d.one_of({"async", "async::generic", "async.global", "alias", "tensormap::generic"});
      if (which.empty()) d.fail(d.s.op_text + " is not supported");
      d.one_of({"global", "shared::cta", "shared::cluster"});
      if (which == "async") in.a[0] = 1;
      if (which == "async::generic") {
        d.one_of({"acquire", "release"});
        d.mod("sync_restrict::shared::cta");
        d.mod("sync_restrict::shared::cluster");
        d.mod("cluster");
        in.a[0] = 1;
      }
      if (which == "tensormap::generic" || which == "alias") {
        d.one_of({"acquire", "release"});
        d.one_of({"cta", "cluster", "gpu", "sys"});
        in.a[0] = 3;
      }
      return true;
    }
    if (d.mod("mbarrier_init")) {
      if (!d.mod("release") || !d.mod("cluster")) d.fail("fence.mbarrier_init needs .release.cluster");
      in.a[0] = 2;
      return true;
    }
    if (name == "membar") {
      if (d.one_of({"cta", "gl", "sys"}).empty()) d.fail("membar needs .cta, .gl or .sys");
      return true;
    }
    d.one_of({"sc", "acq_rel", "acquire", "release"});
    d.mod("sync_restrict::shared::cta");
    d.mod("sync_restrict::shared::cluster");
    if (d.one_of({"cta", "cluster", "gpu", "sys"}).empty()) d.fail("fence needs a scope");
    return true;
  }
  return false;
}

}  // namespace mla::emu

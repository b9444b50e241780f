// SPDX-License-Identifier: Apache-2.0
//
// atom and red.
#include <bit>
#include <map>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/fp.h"
#include "tests/emulator/engine/instructions/copy.h"

namespace mla::emu {

namespace {

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

void decode_atomic(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  if (d.s.op.size() > 1 && d.s.op[1] == "async") return decode_st_async(d);
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
}

}  // namespace

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

void add_atomic_instructions(InstructionTable* table) {
  (*table)["atom"] = decode_atomic;
  (*table)["red"] = decode_atomic;
}

}  // namespace mla::emu

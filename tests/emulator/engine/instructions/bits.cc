// SPDX-License-Identifier: Apache-2.0
//
// Logic, shifts, and single bits.
#include <bit>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/pick.h"

namespace mla::emu {

namespace {

template <class X>
using U = std::make_unsigned_t<X>;

template <class X>
X and_of(X a, X b) {
  return a & b;
}
template <class X>
X or_of(X a, X b) {
  return a | b;
}
template <class X>
X xor_of(X a, X b) {
  return a ^ b;
}
template <class X>
X not_of(X a) {
  return static_cast<X>(~a);
}
template <class X>
X cnot(X a) {
  return a == 0;
}
bool and_pred(bool a, bool b) { return a && b; }
bool or_pred(bool a, bool b) { return a || b; }
bool xor_pred(bool a, bool b) { return a != b; }
bool not_pred(bool a) { return !a; }

template <class X>
X shl(X a, uint32_t b) {
  return b >= 8 * sizeof(X) ? X{0} : static_cast<X>(a << b);
}
template <class X>
X shr(X a, uint32_t b) {
  constexpr uint32_t width = 8 * sizeof(X);
  if (b >= width) return std::is_signed_v<X> && a < 0 ? static_cast<X>(-1) : X{0};
  return static_cast<X>(a >> b);
}
uint32_t shf_l(uint32_t a, uint32_t b, uint32_t n) {
  return static_cast<uint32_t>(((uint64_t{b} << 32 | a) << n) >> 32);
}
uint32_t shf_r(uint32_t a, uint32_t b, uint32_t n) {
  return static_cast<uint32_t>((uint64_t{b} << 32 | a) >> n);
}
uint32_t shf_l_clamp(uint32_t a, uint32_t b, uint32_t c) { return shf_l(a, b, c > 32 ? 32 : c); }
uint32_t shf_r_clamp(uint32_t a, uint32_t b, uint32_t c) { return shf_r(a, b, c > 32 ? 32 : c); }
uint32_t shf_l_wrap(uint32_t a, uint32_t b, uint32_t c) { return shf_l(a, b, c & 31); }
uint32_t shf_r_wrap(uint32_t a, uint32_t b, uint32_t c) { return shf_r(a, b, c & 31); }

template <class X>
uint32_t popc(X a) {
  return static_cast<uint32_t>(std::popcount(a));
}
template <class X>
uint32_t clz(X a) {
  return static_cast<uint32_t>(std::countl_zero(a));
}
template <class X>
X brev(X a) {
  X r = 0;
  for (size_t i = 0; i < 8 * sizeof(X); ++i) r |= ((a >> i) & 1) << (8 * sizeof(X) - 1 - i);
  return r;
}
template <class X>
uint32_t bfind(X a) {
  U<X> v = static_cast<U<X>>(std::is_signed_v<X> && a < 0 ? ~a : a);
  return v == 0 ? ~0u : static_cast<uint32_t>(8 * sizeof(X) - 1) - static_cast<uint32_t>(std::countl_zero(v));
}
template <class X>
uint32_t bfind_shift(X a) {
  uint32_t r = bfind(a);
  return r == ~0u ? r : static_cast<uint32_t>(8 * sizeof(X) - 1) - r;
}
template <class X>
X bfe(X a, uint32_t start, uint32_t length) {
  constexpr uint32_t msb = 8 * sizeof(X) - 1;
  uint32_t pos = start & 255, len = length & 255;
  U<X> v = static_cast<U<X>>(a);
  U<X> sign = 0;
  if (std::is_signed_v<X> && len) {
    uint32_t at = pos + len - 1 < msb ? pos + len - 1 : msb;
    sign = (v >> at) & 1;
  }
  U<X> r = 0;
  for (uint32_t i = 0; i <= msb; ++i) {
    U<X> bit = i < len && pos + i <= msb ? (v >> (pos + i)) & 1 : sign;
    r |= bit << i;
  }
  return static_cast<X>(r);
}
template <class X>
X bfi(X a, X b, uint32_t c, uint32_t d) {
  constexpr uint32_t msb = 8 * sizeof(X) - 1;
  uint32_t pos = c & 255, len = d & 255;
  X r = b;
  for (uint32_t i = 0; i < len && pos + i <= msb; ++i) {
    X bit = X{1} << (pos + i);
    r = (r & ~bit) | (((a >> i) & 1) << (pos + i));
  }
  return r;
}
uint32_t bmsk_clamp(uint32_t a, uint32_t b) {
  if (a >= 32) return 0;
  uint32_t len = b > 32 ? 32 : b;
  uint64_t ones = (uint64_t{1} << len) - 1;
  return static_cast<uint32_t>(ones << a);
}
uint32_t bmsk_wrap(uint32_t a, uint32_t b) {
  uint64_t ones = (uint64_t{1} << (b & 31)) - 1;
  return static_cast<uint32_t>(ones << (a & 31));
}
uint32_t prmt(uint32_t a, uint32_t b, uint32_t c) {
  uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t sel = (c >> (4 * i)) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (sel & 7))) & 255;
    if (sel & 8) byte = byte & 0x80 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
template <int kMode>
uint32_t prmt_mode(uint32_t a, uint32_t b, uint32_t c) {
  uint64_t bytes = uint64_t{b} << 32 | a;
  auto byte = [&](uint32_t i) { return static_cast<uint32_t>(bytes >> (8 * (i & 7))) & 255; };
  uint32_t n = c & 3, r = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t v = 0;
    switch (kMode) {
      case 0:
        v = byte(n + i);
        break;  // f4e
      case 1:
        v = byte(n + 8 - i);
        break;  // b4e
      case 2:
        v = byte(n);
        break;  // rc8
      case 3:
        v = byte(i > n ? i : n);
        break;  // ecl
      case 4:
        v = byte(i < n ? i : n);
        break;  // ecr
      case 5:
        v = byte((n & 1) * 2 + (i & 1));
        break;  // rc16
    }
    r |= v << (8 * i);
  }
  return r;
}

template <bool kWrap, class X>
X szext(X a, uint32_t width) {
  uint32_t n = kWrap ? width & 31 : width > 32 ? 32 : width;
  if (n == 32) return a;
  if (n == 0) return 0;
  uint32_t shifted = static_cast<uint32_t>(a) << (32 - n);
  return std::is_signed_v<X> ? static_cast<X>(static_cast<int32_t>(shifted) >> (32 - n))
                             : static_cast<X>(shifted >> (32 - n));
}

Next do_lop3(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]),
                 *c = lanes<uint32_t>(m, in.o[3]);
  uint32_t lut = in.a[0];
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) r[i] = 0;
  for (uint32_t k = 0; k < 8; ++k) {
    if (!((lut >> k) & 1)) continue;
    uint32_t x = k & 4 ? 0 : ~0u, y = k & 2 ? 0 : ~0u, z = k & 1 ? 0 : ~0u;
    for (int i = 0; i < 32; ++i) r[i] |= (a[i] ^ x) & (b[i] ^ y) & (c[i] ^ z);
  }
  if (in.o[0].present) store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  if (in.nx) {  // lop3.or and its like: x[0] = (result is not 0) op x[1]
    uint32_t p = 0;
    for (uint32_t i = 0; i < 32; ++i) p |= static_cast<uint32_t>(r[i] != 0) << i;
    const uint32_t q = predicate(m, in.x[1]);
    set_predicate(m, in.x[0], in.a[1] == 0 ? p | q : in.a[1] == 1 ? p & q : p ^ q, mask);
  }
  return Next::kNext;
}

void decode_logic(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  T t = d.type_in({T::kPred, T::kB16, T::kB32, T::kB64});
  bool unary = name == "not" || name == "cnot";
  d.need(unary ? 2 : 3);
  if (t == T::kPred) {
    if (name == "cnot") d.fail("cnot needs .b16, .b32 or .b64");
    in.fn = name == "and"   ? Handler(alu<and_pred, Pred, Pred, Pred>)
            : name == "or"  ? Handler(alu<or_pred, Pred, Pred, Pred>)
            : name == "xor" ? Handler(alu<xor_pred, Pred, Pred, Pred>)
                            : Handler(alu<not_pred, Pred, Pred>);
  } else {
    in.fn = name == "and"   ? MLA_PICK_BITS(t, (alu<and_of<X>, X, X, X>))
            : name == "or"  ? MLA_PICK_BITS(t, (alu<or_of<X>, X, X, X>))
            : name == "xor" ? MLA_PICK_BITS(t, (alu<xor_of<X>, X, X, X>))
            : name == "not" ? MLA_PICK_BITS(t, (alu<not_of<X>, X, X>))
                            : MLA_PICK_BITS(t, (alu<cnot<X>, X, X>));
  }
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  if (!unary) in.o[2] = d.src(2, t);
}

void decode_shift(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  T t = d.type();
  if (name == "shl" && bits_of(t) >= 16 && !is_integer(t)) {
    in.fn = MLA_PICK_BITS(t, (alu<shl<X>, X, X, uint32_t>));
  } else if (name == "shr") {
    T u = t == T::kB16 ? T::kU16 : t == T::kB32 ? T::kU32 : t == T::kB64 ? T::kU64 : t;
    in.fn = MLA_PICK(u, (alu<shr<X>, X, X, uint32_t>));
  }
  if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
  d.need(3);
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, T::kU32);
}

void decode_funnel_shift(Decoder& d) {
  Instr& in = d.in;
  std::string side = d.one_of({"l", "r"}), mode = d.one_of({"clamp", "wrap"});
  d.type_in({T::kB32});
  d.need(4);
  if (side.empty() || mode.empty()) d.fail("shf needs .l or .r and .clamp or .wrap");
  in.fn = side == "l" ? (mode == "clamp" ? Handler(alu<shf_l_clamp, uint32_t, uint32_t, uint32_t, uint32_t>)
                                         : Handler(alu<shf_l_wrap, uint32_t, uint32_t, uint32_t, uint32_t>))
                      : (mode == "clamp" ? Handler(alu<shf_r_clamp, uint32_t, uint32_t, uint32_t, uint32_t>)
                                         : Handler(alu<shf_r_wrap, uint32_t, uint32_t, uint32_t, uint32_t>));
  in.o[0] = d.dst(0, T::kU32);
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kU32);
}

void decode_lop3(Decoder& d) {
  Instr& in = d.in;
  std::string combine = d.one_of({"or", "and", "xor"});
  d.type_in({T::kB32});
  d.need(combine.empty() ? 5 : 6);
  in.fn = do_lop3;
  if (combine.empty()) {
    in.o[0] = d.dst(0, T::kB32);
  } else {
    const Operand& to = d.operand(0);
    if (to.kind != Operand::kPair) d.fail(d.s.op_text + " needs a register (or _) and a predicate");
    if (to.parts[0].kind != Operand::kSink) in.o[0] = d.dst(to.parts[0], 32);
    in.a[1] = combine == "or" ? 0 : combine == "and" ? 1 : 2;
    d.pool({d.dst(to.parts[1], 1), d.src_pred(d.operand(5))});
  }
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kB32);
  in.a[0] = static_cast<uint32_t>(d.immediate(4)) & 255;
}

void decode_prmt(Decoder& d) {
  Instr& in = d.in;
  d.type_in({T::kB32});
  std::string mode = d.one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  d.need(4);
  in.fn = mode.empty()    ? Handler(alu<prmt, uint32_t, uint32_t, uint32_t, uint32_t>)
          : mode == "f4e" ? Handler(alu<prmt_mode<0>, uint32_t, uint32_t, uint32_t, uint32_t>)
          : mode == "b4e" ? Handler(alu<prmt_mode<1>, uint32_t, uint32_t, uint32_t, uint32_t>)
          : mode == "rc8" ? Handler(alu<prmt_mode<2>, uint32_t, uint32_t, uint32_t, uint32_t>)
          : mode == "ecl" ? Handler(alu<prmt_mode<3>, uint32_t, uint32_t, uint32_t, uint32_t>)
          : mode == "ecr" ? Handler(alu<prmt_mode<4>, uint32_t, uint32_t, uint32_t, uint32_t>)
                          : Handler(alu<prmt_mode<5>, uint32_t, uint32_t, uint32_t, uint32_t>);
  in.o[0] = d.dst(0, T::kB32);
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kB32);
}

void decode_count(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  T t = d.type_in({T::kB32, T::kB64});
  d.need(2);
  bool wide = t == T::kB64;
  in.fn = name == "popc" ? (wide ? Handler(alu<popc<uint64_t>, uint32_t, uint64_t>)
                                 : Handler(alu<popc<uint32_t>, uint32_t, uint32_t>))
                         : (wide ? Handler(alu<clz<uint64_t>, uint32_t, uint64_t>)
                                 : Handler(alu<clz<uint32_t>, uint32_t, uint32_t>));
  in.o[0] = d.dst(0, T::kU32);
  in.o[1] = d.src(1, t);
}

void decode_brev(Decoder& d) {
  Instr& in = d.in;
  T t = d.type_in({T::kB32, T::kB64});
  d.need(2);
  in.fn = t == T::kB64 ? Handler(alu<brev<uint64_t>, uint64_t, uint64_t>)
                       : Handler(alu<brev<uint32_t>, uint32_t, uint32_t>);
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
}

void decode_bfind(Decoder& d) {
  Instr& in = d.in;
  bool shift = d.mod("shiftamt");
  T t = d.type_in({T::kU32, T::kS32, T::kU64, T::kS64});
  d.need(2);
  in.fn = shift ? MLA_PICK(t, (alu<bfind_shift<X>, uint32_t, X>)) : MLA_PICK(t, (alu<bfind<X>, uint32_t, X>));
  in.o[0] = d.dst(0, T::kU32);
  in.o[1] = d.src(1, t);
}

void decode_bfe(Decoder& d) {
  Instr& in = d.in;
  T t = d.type_in({T::kU32, T::kS32, T::kU64, T::kS64});
  d.need(4);
  in.fn = MLA_PICK(t, (alu<bfe<X>, X, X, uint32_t, uint32_t>));
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, T::kU32);
  in.o[3] = d.src(3, T::kU32);
}

void decode_bfi(Decoder& d) {
  Instr& in = d.in;
  T t = d.type_in({T::kB32, T::kB64});
  d.need(5);
  in.fn = t == T::kB64 ? Handler(alu<bfi<uint64_t>, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>)
                       : Handler(alu<bfi<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>);
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  in.o[3] = d.src(3, T::kU32);
  in.o[4] = d.src(4, T::kU32);
}

void decode_bmsk(Decoder& d) {
  Instr& in = d.in;
  std::string mode = d.one_of({"clamp", "wrap"});
  d.type_in({T::kB32});
  d.need(3);
  in.fn = mode == "clamp" ? Handler(alu<bmsk_clamp, uint32_t, uint32_t, uint32_t>)
                          : Handler(alu<bmsk_wrap, uint32_t, uint32_t, uint32_t>);
  in.o[0] = d.dst(0, T::kB32);
  in.o[1] = d.src(1, T::kB32);
  in.o[2] = d.src(2, T::kB32);
}

void decode_szext(Decoder& d) {
  Instr& in = d.in;
  std::string mode = d.one_of({"clamp", "wrap"});
  T t = d.type_in({T::kU32, T::kS32});
  d.need(3);
  if (mode.empty()) d.fail("szext needs .clamp or .wrap");
  bool wrap = mode == "wrap";
  in.fn = t == T::kU32 ? (wrap ? Handler(alu<szext<true, uint32_t>, uint32_t, uint32_t, uint32_t>)
                               : Handler(alu<szext<false, uint32_t>, uint32_t, uint32_t, uint32_t>))
                       : (wrap ? Handler(alu<szext<true, int32_t>, int32_t, int32_t, uint32_t>)
                               : Handler(alu<szext<false, int32_t>, int32_t, int32_t, uint32_t>));
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, T::kU32);
}

}  // namespace

void add_bit_instructions(InstructionTable* table) {
  (*table)["and"] = decode_logic;
  (*table)["or"] = decode_logic;
  (*table)["xor"] = decode_logic;
  (*table)["not"] = decode_logic;
  (*table)["cnot"] = decode_logic;
  (*table)["shl"] = decode_shift;
  (*table)["shr"] = decode_shift;
  (*table)["shf"] = decode_funnel_shift;
  (*table)["lop3"] = decode_lop3;
  (*table)["prmt"] = decode_prmt;
  (*table)["popc"] = decode_count;
  (*table)["clz"] = decode_count;
  (*table)["brev"] = decode_brev;
  (*table)["bfind"] = decode_bfind;
  (*table)["bfe"] = decode_bfe;
  (*table)["bfi"] = decode_bfi;
  (*table)["bmsk"] = decode_bmsk;
  (*table)["szext"] = decode_szext;
}

}  // namespace mla::emu

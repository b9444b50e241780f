// SPDX-License-Identifier: Apache-2.0
//
// Integer arithmetic.
#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/fp.h"
#include "tests/emulator/engine/instructions/arithmetic.h"
#include "tests/emulator/engine/instructions/pick.h"

namespace mla::emu {

namespace {

template <class X>
using U = std::make_unsigned_t<X>;

template <class X>
struct WideOf;
template <>
struct WideOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WideOf<int16_t> {
  using type = int32_t;
};
template <>
struct WideOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WideOf<int32_t> {
  using type = int64_t;
};
template <>
struct WideOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WideOf<int64_t> {
  using type = __int128;
};
template <class X>
using Wide = typename WideOf<X>::type;

template <class X>
X add(X a, X b) {
  return static_cast<X>(static_cast<U<X>>(a) + static_cast<U<X>>(b));
}
template <class X>
X sub(X a, X b) {
  return static_cast<X>(static_cast<U<X>>(a) - static_cast<U<X>>(b));
}
template <class X>
X add_sat(X a, X b) {
  int64_t r = int64_t{a} + b;
  return static_cast<X>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
template <class X>
X sub_sat(X a, X b) {
  int64_t r = int64_t{a} - b;
  return static_cast<X>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
template <class X>
X mul_lo(X a, X b) {
  return static_cast<X>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class X>
X mul_hi(X a, X b) {
  return static_cast<X>((Wide<X>{a} * Wide<X>{b}) >> (8 * sizeof(X)));
}
template <class X>
Wide<X> mul_wide(X a, X b) {
  return Wide<X>{a} * Wide<X>{b};
}
template <class X>
X mad_lo(X a, X b, X c) {
  return add(mul_lo(a, b), c);
}
template <class X>
X mad_hi(X a, X b, X c) {
  return add(mul_hi(a, b), c);
}
template <class X>
Wide<X> mad_wide(X a, X b, Wide<X> c) {
  return add<Wide<X>>(mul_wide(a, b), c);
}
template <class X>
X div(X a, X b) {
  if (b == 0) return static_cast<X>(~U<X>{0});
  if constexpr (std::is_signed_v<X>) {
    if (b == -1) return sub<X>(0, a);
  }
  return static_cast<X>(a / b);
}
template <class X>
X rem(X a, X b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<X>) {
    if (b == -1) return 0;
  }
  return static_cast<X>(a % b);
}
template <class X>
X min_of(X a, X b) {
  return a < b ? a : b;
}
template <class X>
X max_of(X a, X b) {
  return a > b ? a : b;
}
template <class X>
X neg(X a) {
  return sub<X>(0, a);
}
template <class X>
X abs_of(X a) {
  return a < 0 ? sub<X>(0, a) : a;
}
template <class X>
X sad(X a, X b, X c) {
  return add<X>(c, a < b ? sub(b, a) : sub(a, b));
}

// Two halves of a times two bytes of b: a[0] 0 the low bytes, 16 the high ones; a[1], a[2] a and b are
// signed.
Next do_dp2a(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]),
                 *c = lanes<uint32_t>(m, in.o[3]);
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    r[i] = c[i];
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t x = (a[i] >> (16 * k)) & 0xffff, y = (b[i] >> (in.a[0] + 8 * k)) & 0xff;
      r[i] += (in.a[1] ? static_cast<uint32_t>(static_cast<int16_t>(x)) : x) *
              (in.a[2] ? static_cast<uint32_t>(static_cast<int8_t>(y)) : y);
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

template <class A, class B>
int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
  uint32_t r = static_cast<uint32_t>(c);
  for (int i = 0; i < 4; ++i)
    r += static_cast<uint32_t>(static_cast<int32_t>(static_cast<A>(a >> (8 * i))) *
                               static_cast<int32_t>(static_cast<B>(b >> (8 * i))));
  return static_cast<int32_t>(r);
}

template <class X>
X mul24_lo(X a, X b) {
  auto low = [](X v) -> int64_t {
    return std::is_signed_v<X>
               ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(v) << 8) >> 8)
               : static_cast<int64_t>(v & 0xffffff);
  };
  return static_cast<X>(low(a) * low(b));
}
template <class X>
X mul24_hi(X a, X b) {
  auto low = [](X v) -> int64_t {
    return std::is_signed_v<X>
               ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(v) << 8) >> 8)
               : static_cast<int64_t>(v & 0xffffff);
  };
  return static_cast<X>((low(a) * low(b)) >> 16);
}
template <class X>
X mad24_lo(X a, X b, X c) {
  return add<X>(mul24_lo(a, b), c);
}
int32_t mad_hi_sat(int32_t a, int32_t b, int32_t c) { return add_sat<int32_t>(mul_hi(a, b), c); }

// Two 16-bit integers: a[0] 0 add, 1 min, 2 max; a[1] signed; a[2] relu.
Next do_16x2(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]);
  uint32_t r[32];
  auto one = [&](uint32_t x, uint32_t y) -> uint32_t {
    int32_t p = in.a[1] ? static_cast<int16_t>(x) : static_cast<int32_t>(x & 0xffff);
    int32_t q = in.a[1] ? static_cast<int16_t>(y) : static_cast<int32_t>(y & 0xffff);
    int32_t v = in.a[0] == 0 ? p + q : in.a[0] == 1 ? (p < q ? p : q) : (p > q ? p : q);
    if (in.a[2] && v < 0) v = 0;
    return static_cast<uint32_t>(v) & 0xffff;
  };
  for (int i = 0; i < 32; ++i) r[i] = one(a[i], b[i]) | one(a[i] >> 16, b[i] >> 16) << 16;
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

int32_t min_relu(int32_t a, int32_t b) { return max_of<int32_t>(min_of(a, b), 0); }
int32_t max_relu(int32_t a, int32_t b) { return max_of<int32_t>(max_of(a, b), 0); }

// add.cc and friends: a[0] 1 subtract, a[1] 1 take the carry in, a[2] 1 give it out.
template <class X>
Next do_carry(Machine& m, const Instr& in, uint32_t mask) {
  Source<X> a(m, in.o[1]), b(m, in.o[2]);
  uint32_t carry_in = in.a[1] ? *reinterpret_cast<uint32_t*>(operand_at(m, in.o[3])) : (in.a[0] ? ~0u : 0u);
  Store<X> r[32];
  uint32_t carry = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    X y = in.a[0] ? static_cast<X>(~b[static_cast<int>(i)]) : b[static_cast<int>(i)];
    unsigned __int128 sum =
        static_cast<unsigned __int128>(a[static_cast<int>(i)]) + y + ((carry_in >> i) & 1);
    r[i] = static_cast<X>(sum);
    carry |= static_cast<uint32_t>((sum >> (8 * sizeof(X))) & 1) << i;
  }
  store_lanes(lanes<X>(m, in.o[0]), r, mask);
  if (in.a[2]) set_predicate(m, in.o[3], carry, mask);
  return Next::kNext;
}

Handler integer_binary(const std::string& name, T t, bool saturate) {
  if (name == "add")
    return saturate ? Handler(alu<add_sat<int32_t>, int32_t, int32_t, int32_t>)
                    : MLA_PICK(t, (alu<add<X>, X, X, X>));
  if (name == "sub")
    return saturate ? Handler(alu<sub_sat<int32_t>, int32_t, int32_t, int32_t>)
                    : MLA_PICK(t, (alu<sub<X>, X, X, X>));
  if (name == "div") return MLA_PICK(t, (alu<div<X>, X, X, X>));
  if (name == "rem") return MLA_PICK(t, (alu<rem<X>, X, X, X>));
  if (name == "min") return MLA_PICK(t, (alu<min_of<X>, X, X, X>));
  if (name == "max") return MLA_PICK(t, (alu<max_of<X>, X, X, X>));
  return nullptr;
}

void decode_carry(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  bool out = d.mod("cc");
  T t = d.type();
  d.need(3);
  in.fn = bits_of(t) == 64 ? Handler(do_carry<uint64_t>) : Handler(do_carry<uint32_t>);
  in.a[0] = name == "subc";
  in.a[1] = 1;
  in.a[2] = out;
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  in.o[3].offset = d.carry_place();
  in.o[3].constant = 2;
  in.o[3].present = 1;
}

void decode_mul24(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  std::string part = d.one_of({"lo", "hi"});
  T t = d.type_in({T::kU32, T::kS32});
  bool mad = name == "mad24";
  if (part.empty() || (mad && part == "hi")) d.fail(d.s.op_text + " is not supported");
  d.need(mad ? 4 : 3);
  if (mad) {
    in.fn = MLA_PICK(t, (alu<mad24_lo<X>, X, X, X, X>));
  } else {
    in.fn =
        part == "lo" ? MLA_PICK(t, (alu<mul24_lo<X>, X, X, X>)) : MLA_PICK(t, (alu<mul24_hi<X>, X, X, X>));
  }
  in.o[0] = d.dst(0, t);
  for (size_t i = 1; i < d.count(); ++i) in.o[i] = d.src(i, t);
}

void decode_sad(Decoder& d) {
  Instr& in = d.in;
  T t = d.type();
  d.need(4);
  in.fn = MLA_PICK(t, (alu<sad<X>, X, X, X, X>));
  if (!in.fn) d.fail("type is not supported for sad");
  in.o[0] = d.dst(0, t);
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, t);
}

void decode_dp2a(Decoder& d) {
  Instr& in = d.in;
  std::string half = d.one_of({"lo", "hi"});
  T a = d.type_in({T::kU32, T::kS32}), b = d.type_in({T::kU32, T::kS32});
  if (half.empty()) d.fail("dp2a needs .lo or .hi");
  d.need(4);
  in.fn = do_dp2a;
  in.a[0] = half == "hi" ? 16 : 0;
  in.a[1] = a == T::kS32;
  in.a[2] = b == T::kS32;
  in.o[0] = d.dst(0, T::kS32);
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kS32);
}

void decode_dp4a(Decoder& d) {
  Instr& in = d.in;
  T a = d.type_in({T::kU32, T::kS32}), b = d.type_in({T::kU32, T::kS32});
  d.need(4);
  in.fn = a == T::kU32
              ? (b == T::kU32 ? Handler(alu<dp4a<uint8_t, uint8_t>, int32_t, uint32_t, uint32_t, int32_t>)
                              : Handler(alu<dp4a<uint8_t, int8_t>, int32_t, uint32_t, uint32_t, int32_t>))
              : (b == T::kU32 ? Handler(alu<dp4a<int8_t, uint8_t>, int32_t, uint32_t, uint32_t, int32_t>)
                              : Handler(alu<dp4a<int8_t, int8_t>, int32_t, uint32_t, uint32_t, int32_t>));
  in.o[0] = d.dst(0, T::kS32);
  for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kS32);
}

}  // namespace

void decode_integer_arithmetic(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  bool carry = d.mod("cc");
  bool saturate = d.mod("sat");
  bool relu = (name == "min" || name == "max") && d.mod("relu");
  T t = d.type();
  d.need(3);
  if (t == T::kU16x2 || t == T::kS16x2) {
    if (carry || saturate || (name != "add" && name != "min" && name != "max") || (relu && t == T::kU16x2)) {
      d.fail(d.s.op_text + " is not supported");
    }
    in.fn = do_16x2;
    in.a[0] = name == "add" ? 0 : name == "min" ? 1 : 2;
    in.a[1] = t == T::kS16x2;
    in.a[2] = relu;
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    return;
  }
  if (relu) {
    if (t != T::kS32) d.fail(".relu needs .s32 or .s16x2");
    in.fn = name == "min" ? Handler(alu<min_relu, int32_t, int32_t, int32_t>)
                          : Handler(alu<max_relu, int32_t, int32_t, int32_t>);
    for (size_t i = 0; i < 3; ++i) in.o[i] = i ? d.src(i, t) : d.dst(i, t);
    return;
  }
  if (carry) {
    if (name != "add" && name != "sub") d.fail(".cc is not supported for " + name);
    bool wide = bits_of(t) == 64;
    in.fn = wide ? Handler(do_carry<uint64_t>) : Handler(do_carry<uint32_t>);
    in.a[0] = name == "sub";
    in.a[2] = 1;
  } else {
    if (!is_integer(t)) d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
    if (saturate && t != T::kS32) d.fail(".sat needs .s32");
    if (saturate && name != "add" && name != "sub") d.fail(".sat is not supported for " + name);
    in.fn = integer_binary(name, t, saturate);
  }
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  if (carry) {
    in.o[3].offset = d.carry_place();
    in.o[3].constant = 2;
    in.o[3].present = 1;
  }
}

void decode_integer_multiply(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  if (name == "mad" && d.mod("sat")) {
    if (!d.mod("hi")) d.fail("mad.sat needs .hi.s32");
    d.type_in({T::kS32});
    d.need(4);
    in.fn = alu<mad_hi_sat, int32_t, int32_t, int32_t, int32_t>;
    in.o[0] = d.dst(0, T::kS32);
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kS32);
    return;
  }
  std::string part = d.one_of({"lo", "hi", "wide"});
  if (part.empty()) d.fail(d.s.op_text + " needs .lo, .hi or .wide");
  T t = d.type();
  if (!is_integer(t))
    d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name + "." + part);
  bool mad = name == "mad";
  d.need(mad ? 4 : 3);
  uint32_t bits = bits_of(t), result_bits = part == "wide" ? 2 * bits : bits;
  if (part == "wide" && bits == 64) d.fail("mul.wide of 64 bits is not supported");
  if (part == "lo")
    in.fn = mad ? MLA_PICK(t, (alu<mad_lo<X>, X, X, X, X>)) : MLA_PICK(t, (alu<mul_lo<X>, X, X, X>));
  if (part == "hi")
    in.fn = mad ? MLA_PICK(t, (alu<mad_hi<X>, X, X, X, X>)) : MLA_PICK(t, (alu<mul_hi<X>, X, X, X>));
  if (part == "wide") {
    switch (t) {
      case T::kU16:
        in.fn = mad ? Handler(alu<mad_wide<uint16_t>, uint32_t, uint16_t, uint16_t, uint32_t>)
                    : Handler(alu<mul_wide<uint16_t>, uint32_t, uint16_t, uint16_t>);
        break;
      case T::kS16:
        in.fn = mad ? Handler(alu<mad_wide<int16_t>, int32_t, int16_t, int16_t, int32_t>)
                    : Handler(alu<mul_wide<int16_t>, int32_t, int16_t, int16_t>);
        break;
      case T::kU32:
        in.fn = mad ? Handler(alu<mad_wide<uint32_t>, uint64_t, uint32_t, uint32_t, uint64_t>)
                    : Handler(alu<mul_wide<uint32_t>, uint64_t, uint32_t, uint32_t>);
        break;
      default:
        in.fn = mad ? Handler(alu<mad_wide<int32_t>, int64_t, int32_t, int32_t, int64_t>)
                    : Handler(alu<mul_wide<int32_t>, int64_t, int32_t, int32_t>);
        break;
    }
  }
  in.o[0] = d.dst(d.operand(0), result_bits);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  if (mad) in.o[3] = d.src(3, result_bits == 64 ? T::kU64 : result_bits == 32 ? T::kU32 : T::kU16);
}

void decode_integer_sign(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  T t = d.type_in({T::kS16, T::kS32, T::kS64});
  d.need(2);
  bool is_neg = name == "neg";
  in.fn = t == T::kS16   ? (is_neg ? Handler(alu<neg<int16_t>, int16_t, int16_t>)
                                   : Handler(alu<abs_of<int16_t>, int16_t, int16_t>))
          : t == T::kS32 ? (is_neg ? Handler(alu<neg<int32_t>, int32_t, int32_t>)
                                   : Handler(alu<abs_of<int32_t>, int32_t, int32_t>))
                         : (is_neg ? Handler(alu<neg<int64_t>, int64_t, int64_t>)
                                   : Handler(alu<abs_of<int64_t>, int64_t, int64_t>));
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
}

void add_integer_instructions(InstructionTable* table) {
  (*table)["rem"] = decode_integer_arithmetic;
  (*table)["addc"] = decode_carry;
  (*table)["subc"] = decode_carry;
  (*table)["mul24"] = decode_mul24;
  (*table)["mad24"] = decode_mul24;
  (*table)["sad"] = decode_sad;
  (*table)["dp2a"] = decode_dp2a;
  (*table)["dp4a"] = decode_dp4a;
}

}  // namespace mla::emu

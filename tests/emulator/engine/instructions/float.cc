// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of f32 and f64. add, mul, fma, div.rn, rcp.rn and sqrt.rn are exact as IEEE 754 asks; the
// .approx forms are computed in double and rounded, so they may differ from hardware in the last places that
// PTX leaves open.
#include <map>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/arithmetic.h"
#include "tests/emulator/engine/instructions/float_rules.h"

namespace mla::emu {

namespace {

template <bool kFtz>
float in32(float x) {
  return kFtz ? flush(x) : x;
}
template <bool kFtz, bool kSat = false>
float out32(float x) {
  x = canonical(x);
  if constexpr (kSat) {
    x = x != x ? 0.0f : x < 0 ? 0.0f : x > 1 ? 1.0f : x == 0 ? 0.0f : x;
  }
  return kFtz ? flush(x) : x;
}

template <bool F, bool S>
float add32(float a, float b) {
  return out32<F, S>(in32<F>(a) + in32<F>(b));
}
template <bool F, bool S>
float sub32(float a, float b) {
  return out32<F, S>(in32<F>(a) - in32<F>(b));
}
template <bool F, bool S>
float mul32(float a, float b) {
  return out32<F, S>(in32<F>(a) * in32<F>(b));
}
template <bool F, bool S>
float fma32(float a, float b, float c) {
  return out32<F, S>(__builtin_fmaf(in32<F>(a), in32<F>(b), in32<F>(c)));
}
double add64(double a, double b) {
  double r = a + b;
  return r != r ? nan_of(b, a) : r;
}
double sub64(double a, double b) {
  double r = a - b;
  return r != r ? nan_of(b, a) : r;
}
double mul64(double a, double b) {
  double r = a * b;
  return r != r ? nan_of(b, a) : r;
}
double fma64(double a, double b, double c) {
  double r = __builtin_fma(a, b, c);
  return r != r ? nan_of(b, c, a) : r;
}
double div64(double a, double b) {
  double r = a / b;
  return r != r ? nan_of(a, b) : r;
}
double rcp64(double a) { return a != a ? quiet(a) : 1.0 / a; }
double sqrt64(double a) {
  double r = std::sqrt(a);
  return r != r ? nan_of(a, a) : r;
}
double neg64(double a) {
  return a != a ? quiet(a) : std::bit_cast<double>(std::bit_cast<uint64_t>(a) ^ (uint64_t{1} << 63));
}
double abs64(double a) { return a != a ? quiet(a) : std::fabs(a); }
double minmax64(double a, double b, bool max) {
  if (a != a && b != b) return quiet(b);
  if (a != a || b != b) return a != a ? b : a;
  if (a == b) return max == std::signbit(a) ? b : a;
  return max == (a > b) ? a : b;
}
double min64(double a, double b) { return minmax64(a, b, false); }
double max64(double a, double b) { return minmax64(a, b, true); }

template <bool F>
float div32(float a, float b) {
  return out32<F>(in32<F>(a) / in32<F>(b));
}
template <bool F>
float rcp32(float a) {
  return out32<F>(1.0f / in32<F>(a));
}
template <bool F>
float sqrt32(float a) {
  return out32<F>(std::sqrt(in32<F>(a)));
}
// div.approx computes a * rcp(b): for |b| in (2^126, 2^128) the result is 0 (NaN for infinite a).
template <bool F>
float div_approx32(float a, float b) {
  a = in32<F>(a);
  b = in32<F>(b);
  float magnitude = std::fabs(b);
  if (magnitude > 0x1p126f && !std::isinf(b)) {
    if (std::isinf(a)) return f32_from(kNanF32);
    return a != a ? f32_from(kNanF32) : std::copysign(0.0f, a) * std::copysign(1.0f, b);
  }
  return out32<F>(a / b);
}
template <bool F>
float rsqrt32(float a) {
  return out32<F>(static_cast<float>(1.0 / std::sqrt(static_cast<double>(in32<F>(a)))));
}
template <bool F>
float ex2_32(float a) {
  return out32<F>(static_cast<float>(std::exp2(static_cast<double>(in32<F>(a)))));
}
template <bool F>
float lg2_32(float a) {
  return out32<F>(static_cast<float>(std::log2(static_cast<double>(in32<F>(a)))));
}
template <bool F>
float sin32(float a) {
  return out32<F>(static_cast<float>(std::sin(static_cast<double>(in32<F>(a)))));
}
template <bool F>
float cos32(float a) {
  return out32<F>(static_cast<float>(std::cos(static_cast<double>(in32<F>(a)))));
}
float tanh32(float a) { return canonical(static_cast<float>(std::tanh(static_cast<double>(a)))); }

template <bool F, bool kMax, bool kNan>
float minmax32(float a, float b) {
  return minmax(in32<F>(a), in32<F>(b), kMax, kNan);
}
template <bool F, bool kMax, bool kNan>
float minmax3_32(float a, float b, float c) {
  return minmax(minmax(in32<F>(a), in32<F>(b), kMax, kNan), in32<F>(c), kMax, kNan);
}
// min and max by magnitude, with the sign of the product.
template <bool F, bool kMax, bool kNan>
float minmax_xorsign(float a, float b) {
  uint32_t sign = (f32_bits(a) ^ f32_bits(b)) & 0x80000000;
  float r = minmax(std::fabs(in32<F>(a)), std::fabs(in32<F>(b)), kMax, kNan);
  return r != r ? r : f32_from(f32_bits(r) | sign);
}

enum TestKind : uint32_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

// testp: a[0] TestKind.
template <class X>
Next do_testp(Machine& m, const Instr& in, uint32_t mask) {
  Source<X> a(m, in.o[1]);
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) {
    X x = a[i];
    int c = std::fpclassify(x);
    bool v = false;
    switch (in.a[0]) {
      case kFinite:
        v = c != FP_NAN && c != FP_INFINITE;
        break;
      case kInfinite:
        v = c == FP_INFINITE;
        break;
      case kNumber:
        v = c != FP_NAN;
        break;
      case kNotANumber:
        v = c == FP_NAN;
        break;
      case kNormal:
        v = c == FP_NORMAL || c == FP_ZERO;  // as PTX says
        break;
      default:
        v = c == FP_SUBNORMAL;
    }
    r |= static_cast<uint32_t>(v) << i;
  }
  set_predicate(m, in.o[0], r, mask);
  return Next::kNext;
}

template <bool F>
float neg32(float a) {
  return in32<F>(canonical(f32_from(f32_bits(a) ^ 0x80000000)));
}
template <bool F>
float abs32(float a) {
  return in32<F>(canonical(f32_from(f32_bits(a) & 0x7fffffff)));
}
float copysign32(float a, float b) {
  return f32_from((f32_bits(a) & 0x80000000) | (f32_bits(b) & 0x7fffffff));
}

// Directed roundings: a[0] operation, a[1] rounding, a[2] bits: 1 ftz, 2 sat.
enum Slow : uint32_t { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };

template <class X>
Next do_rounded(Machine& m, const Instr& in, uint32_t mask) {
  const bool ftz = in.a[2] & 1, sat = in.a[2] & 2;
  Source<X> sa(m, in.o[1]), sb(m, in.o[2].present ? in.o[2] : in.o[1]),
      sc(m, in.o[3].present ? in.o[3] : in.o[1]);
  Store<X> r[32];
  auto in_value = [&](X x) {
    if constexpr (sizeof(X) == 4) return ftz ? flush(x) : x;
    return x;
  };
  in_mode(static_cast<Round>(in.a[1]), [&] {
    for (int i = 0; i < 32; ++i) {
      volatile X a = in_value(sa[i]), b = in_value(sb[i]), c = in_value(sc[i]);
      volatile X t = 0;  // computed between the two changes of mode
      switch (in.a[0]) {
        case kAdd:
          t = a + b;
          break;
        case kSub:
          t = a - b;
          break;
        case kMul:
          t = a * b;
          break;
        case kFma:
          t = std::fma(X(a), X(b), X(c));
          break;
        case kDiv:
          t = a / b;
          break;
        case kRcp:
          t = X(1) / a;
          break;
        case kSqrt:
          t = std::sqrt(X(a));
          break;
      }
      X v = t;
      if constexpr (sizeof(X) == 8) {
        if (v != v) {
          bool three = in.a[0] == kFma;
          v = in.a[0] >= kRcp   ? nan_of(a, a)
              : in.a[0] == kDiv ? nan_of(a, b)
              : three           ? nan_of(b, c, a)
                                : nan_of(b, a);
        }
      } else {
        v = canonical(v);
        if (sat) v = out32<false, true>(v);
        if (ftz) v = flush(v);
      }
      r[i] = to_lane<X>(v);
    }
    return 0;
  });
  store_lanes(lanes<X>(m, in.o[0]), r, mask);
  return Next::kNext;
}

#define MLA_FTZ(name, ...) \
  (ftz ? Handler(alu<name<true>, __VA_ARGS__>) : Handler(alu<name<false>, __VA_ARGS__>))
#define MLA_FTZ_SAT(name, ...)                                                                              \
  (ftz ? (sat ? Handler(alu<name<true, true>, __VA_ARGS__>) : Handler(alu<name<true, false>, __VA_ARGS__>)) \
       : (sat ? Handler(alu<name<false, true>, __VA_ARGS__>)                                                \
              : Handler(alu<name<false, false>, __VA_ARGS__>)))

void decode_testp(Decoder& d) {
  Instr& in = d.in;
  static const std::map<std::string, uint32_t> kinds = {{"finite", kFinite}, {"infinite", kInfinite},
                                                        {"number", kNumber}, {"notanumber", kNotANumber},
                                                        {"normal", kNormal}, {"subnormal", kSubnormal}};
  std::string kind = d.one_of({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  T t = d.type_in({T::kF32, T::kF64});
  d.need(2);
  if (kind.empty()) d.fail(d.s.op_text + " is not supported");
  in.fn = t == T::kF64 ? Handler(do_testp<double>) : Handler(do_testp<float>);
  in.a[0] = kinds.at(kind);
  in.o[0] = d.dst(0, T::kPred);
  in.o[1] = d.src(1, t);
}

void decode_copysign(Decoder& d) {
  Instr& in = d.in;
  d.type_in({T::kF32});
  d.need(3);
  in.fn = alu<copysign32, float, float, float>;
  in.o[0] = d.dst(0, T::kF32);
  in.o[1] = d.src(1, T::kF32);
  in.o[2] = d.src(2, T::kF32);
}

}  // namespace

void decode_float_arithmetic(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  std::string mode = d.one_of({"rn", "rz", "rm", "rp"});
  bool ftz = d.mod("ftz"), sat = d.mod("sat");
  T t = d.type_in({T::kF32, T::kF64});
  bool fma = name == "fma" || name == "mad";
  if (fma && mode.empty()) d.fail(name + " needs a rounding modifier");
  if (t == T::kF64 && (ftz || sat)) d.fail(".ftz and .sat need .f32");
  d.need(fma ? 4 : 3);
  if (mode.empty() || mode == "rn") {
    if (t == T::kF64) {
      in.fn = name == "add"   ? Handler(alu<add64, double, double, double>)
              : name == "sub" ? Handler(alu<sub64, double, double, double>)
              : name == "mul" ? Handler(alu<mul64, double, double, double>)
                              : Handler(alu<fma64, double, double, double, double>);
    } else {
      in.fn = name == "add"   ? MLA_FTZ_SAT(add32, float, float, float)
              : name == "sub" ? MLA_FTZ_SAT(sub32, float, float, float)
              : name == "mul" ? MLA_FTZ_SAT(mul32, float, float, float)
                              : MLA_FTZ_SAT(fma32, float, float, float, float);
    }
  } else {
    in.fn = t == T::kF64 ? Handler(do_rounded<double>) : Handler(do_rounded<float>);
    in.a[0] = name == "add" ? kAdd : name == "sub" ? kSub : name == "mul" ? kMul : kFma;
    in.a[1] = static_cast<uint32_t>(round_of(mode));
    in.a[2] = (ftz ? 1u : 0u) | (sat ? 2u : 0u);
  }
  in.o[0] = d.dst(0, t);
  for (size_t i = 1; i < d.count(); ++i) in.o[i] = d.src(i, t);
}

void decode_float_division(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  std::string mode = d.one_of({"rn", "rz", "rm", "rp", "approx", "full"});
  bool ftz = d.mod("ftz");
  T t = d.type_in({T::kF32, T::kF64});
  if (mode.empty()) d.fail(name + " needs a rounding modifier or .approx");
  if (mode == "full" && name != "div") d.fail(".full is not supported for " + name);
  if (t == T::kF64 && (mode == "approx" || mode == "full")) d.fail(name + ".approx of .f64 is not supported");
  d.need(name == "div" ? 3 : 2);
  if (mode == "rn" || mode == "approx" || mode == "full") {
    if (t == T::kF64) {
      in.fn = name == "div"   ? Handler(alu<div64, double, double, double>)
              : name == "rcp" ? Handler(alu<rcp64, double, double>)
                              : Handler(alu<sqrt64, double, double>);
    } else if (name == "div") {
      in.fn =
          mode == "approx" ? MLA_FTZ(div_approx32, float, float, float) : MLA_FTZ(div32, float, float, float);
    } else {
      in.fn = name == "rcp" ? MLA_FTZ(rcp32, float, float) : MLA_FTZ(sqrt32, float, float);
    }
  } else {
    in.fn = t == T::kF64 ? Handler(do_rounded<double>) : Handler(do_rounded<float>);
    in.a[0] = name == "div" ? kDiv : name == "rcp" ? kRcp : kSqrt;
    in.a[1] = static_cast<uint32_t>(round_of(mode));
    in.a[2] = ftz ? 1u : 0u;
  }
  in.o[0] = d.dst(0, t);
  for (size_t i = 1; i < d.count(); ++i) in.o[i] = d.src(i, t);
}

void decode_float_function(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  if (!d.mod("approx")) d.fail(name + " needs .approx");
  bool ftz = d.mod("ftz");
  T t = d.type_in({T::kF32});
  d.need(2);
  in.fn = name == "rsqrt" ? MLA_FTZ(rsqrt32, float, float)
          : name == "ex2" ? MLA_FTZ(ex2_32, float, float)
          : name == "lg2" ? MLA_FTZ(lg2_32, float, float)
          : name == "sin" ? MLA_FTZ(sin32, float, float)
          : name == "cos" ? MLA_FTZ(cos32, float, float)
                          : Handler(alu<tanh32, float, float>);
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
}

void decode_float_minmax(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  bool ftz = d.mod("ftz"), nan = d.mod("NaN"), xorsign = d.mod("xorsign");
  if (xorsign && !d.mod("abs")) d.fail(".xorsign needs .abs");
  T t = d.type_in({T::kF32, T::kF64});
  bool max = name == "max";
  if (xorsign) {
    if (t != T::kF32) d.fail(".xorsign.abs needs .f32");
    d.need(3);
#define MLA_XORSIGN(f)                                                             \
  (max ? (nan ? Handler(alu<minmax_xorsign<f, true, true>, float, float, float>)   \
              : Handler(alu<minmax_xorsign<f, true, false>, float, float, float>)) \
       : (nan ? Handler(alu<minmax_xorsign<f, false, true>, float, float, float>)  \
              : Handler(alu<minmax_xorsign<f, false, false>, float, float, float>)))
    in.fn = ftz ? MLA_XORSIGN(true) : MLA_XORSIGN(false);
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    return;
  }
  d.need(3, 4);
  bool three = d.count() == 4;
  if (t == T::kF64) {
    if (ftz || nan || three) d.fail(d.s.op_text + " is not supported in this form");
    in.fn = max ? Handler(alu<max64, double, double, double>) : Handler(alu<min64, double, double, double>);
  } else {
#define MLA_MINMAX(f, n)                                                             \
  (three ? (max ? Handler(alu<minmax3_32<f, true, n>, float, float, float, float>)   \
                : Handler(alu<minmax3_32<f, false, n>, float, float, float, float>)) \
         : (max ? Handler(alu<minmax32<f, true, n>, float, float, float>)            \
                : Handler(alu<minmax32<f, false, n>, float, float, float>)))
    in.fn = ftz ? (nan ? MLA_MINMAX(true, true) : MLA_MINMAX(true, false))
                : (nan ? MLA_MINMAX(false, true) : MLA_MINMAX(false, false));
  }
  in.o[0] = d.dst(0, t);
  for (size_t i = 1; i < d.count(); ++i) in.o[i] = d.src(i, t);
}

void decode_float_sign(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  bool ftz = d.mod("ftz");
  T t = d.type_in({T::kF32, T::kF64});
  d.need(2);
  bool neg = name == "neg";
  in.fn = t == T::kF64 ? (neg ? Handler(alu<neg64, double, double>) : Handler(alu<abs64, double, double>))
          : neg        ? MLA_FTZ(neg32, float, float)
                       : MLA_FTZ(abs32, float, float);
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
}

void add_float_instructions(InstructionTable* table) {
  (*table)["testp"] = decode_testp;
  (*table)["copysign"] = decode_copysign;
  (*table)["rcp"] = decode_float_division;
  (*table)["sqrt"] = decode_float_division;
  (*table)["rsqrt"] = decode_float_function;
  (*table)["lg2"] = decode_float_function;
  (*table)["sin"] = decode_float_function;
  (*table)["cos"] = decode_float_function;
}

}  // namespace mla::emu

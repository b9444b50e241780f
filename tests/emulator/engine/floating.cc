// SPDX-License-Identifier: Apache-2.0
//
// Floating-point arithmetic and conversions. f32 and f64 add, mul, fma, div.rn, rcp.rn and sqrt.rn are
// exact as IEEE 754 asks; the .approx forms are computed in double and rounded, so they may differ
// from hardware in the last places that PTX leaves open.
#include <algorithm>
#include <bit>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/fp.h"

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

float minmax(float a, float b, bool max, bool nan) {
  if (a != a || b != b) {
    if (nan || (a != a && b != b)) return f32_from(kNanF32);
    return a != a ? b : a;
  }
  if (a == b) return max == std::signbit(a) ? b : a;  // -0 is less than +0
  return max == (a > b) ? a : b;
}
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

// ---------------------------------------------------------------- 16-bit formats

// a * b + c exactly rounded to odd in double, so that the rounding to 16 bits is right.
double fma_odd(double a, double b, double c) {
  double p = a * b;  // exact: at most 22 bits
  double s = p + c;
  if (!std::isfinite(s)) return s;
  double t = s - p;
  double error = (p - (s - t)) + (c - t);
  if (error != 0 && !(std::bit_cast<uint64_t>(s) & 1)) {
    uint64_t bits = std::bit_cast<uint64_t>(s);
    bool away = (error > 0) == (s > 0);
    if (s == 0) return error;
    s = std::bit_cast<double>(away ? bits + 1 : bits - 1);
  }
  return s;
}

struct F16Ops {
  static double get(uint16_t v) { return f16_to_f32(v); }
  static uint16_t put(double v) { return f16_from_double(v); }
  static constexpr uint16_t kOne = 0x3c00;
  static constexpr uint16_t kInfinity = 0x7c00;
};
struct Bf16Ops {
  static double get(uint16_t v) { return bf16_to_f32(v); }
  static uint16_t put(double v) { return bf16_from_double(v); }
  static constexpr uint16_t kOne = 0x3f80;
  static constexpr uint16_t kInfinity = 0x7f80;
};

enum Op16 : uint32_t { kAdd16, kSub16, kMul16, kFma16, kMin16, kMax16, kNeg16, kAbs16, kEx216, kTanh16 };
enum Flag16 : uint32_t { kFtz16 = 1, kSat16 = 2, kNan16 = 4, kRelu16 = 8 };

template <class Ops>
uint16_t op16(uint32_t op, uint32_t flags, uint16_t a, uint16_t b, uint16_t c) {
  auto flush16 = [&](uint16_t v) -> uint16_t {
    return (flags & kFtz16) && !(v & Ops::kInfinity) ? v & 0x8000 : v;
  };
  if (op == kNeg16 || op == kAbs16) {
    if ((a & 0x7fff) > Ops::kInfinity) return kNanF16;
    return flush16(op == kNeg16 ? a ^ 0x8000 : a & 0x7fff);
  }
  double x = Ops::get(flush16(a)), y = Ops::get(flush16(b)), z = Ops::get(flush16(c));
  double v = 0;
  switch (op) {
    case kAdd16:
      v = x + y;
      break;
    case kSub16:
      v = x - y;
      break;
    case kMul16:
      v = x * y;
      break;
    case kFma16:
      v = fma_odd(x, y, z);
      break;
    case kMin16:
    case kMax16:
      v = minmax(static_cast<float>(x), static_cast<float>(y), op == kMax16, flags & kNan16);
      break;
    case kEx216:
      v = std::exp2(x);
      break;
    case kTanh16:
      v = std::tanh(x);
      break;
  }
  uint16_t r = flush16(Ops::put(v));
  bool nan = (r & 0x7fff) > Ops::kInfinity;
  if (flags & kSat16) r = nan || (r & 0x8000) ? 0 : std::min(r, Ops::kOne);
  if ((flags & kRelu16) && !nan && (r & 0x8000)) r = 0;
  return r;
}

// a[0] operation, a[1] flags, a[2] 1 for two halves.
template <class Ops>
Next do_16(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t* a = lanes<uint32_t>(m, in.o[1]);
  const uint32_t* b = in.o[2].present ? lanes<uint32_t>(m, in.o[2]) : a;
  const uint32_t* c = in.o[3].present ? lanes<uint32_t>(m, in.o[3]) : a;
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    r[i] = op16<Ops>(in.a[0], in.a[1], static_cast<uint16_t>(a[i]), static_cast<uint16_t>(b[i]),
                     static_cast<uint16_t>(c[i]));
    if (in.a[2]) {
      r[i] |= uint32_t{op16<Ops>(in.a[0], in.a[1], static_cast<uint16_t>(a[i] >> 16),
                                 static_cast<uint16_t>(b[i] >> 16), static_cast<uint16_t>(c[i] >> 16))}
              << 16;
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

std::string rounding(Decoder& d) { return d.one_of({"rn", "rz", "rm", "rp"}); }
Round round_of(const std::string& name) {
  return name == "rz"   ? Round::kZero
         : name == "rm" ? Round::kDown
         : name == "rp" ? Round::kUp
                        : Round::kNearest;
}

bool has(const Decoder& d, std::initializer_list<const char*> names) {
  for (const std::string& part : d.s.op) {
    for (const char* name : names) {
      if (part == name) return true;
    }
  }
  return false;
}

// fma, add, sub, mul, min, max, neg, abs, ex2, tanh of f16, bf16, f16x2, bf16x2.
bool decode_16(Decoder& d) {
  static const std::map<std::string, std::pair<uint32_t, uint32_t>> ops = {
      {"add", {kAdd16, 2}}, {"sub", {kSub16, 2}},  {"mul", {kMul16, 2}}, {"fma", {kFma16, 3}},
      {"min", {kMin16, 2}}, {"max", {kMax16, 2}},  {"neg", {kNeg16, 1}}, {"abs", {kAbs16, 1}},
      {"ex2", {kEx216, 1}}, {"tanh", {kTanh16, 1}}};
  auto found = ops.find(d.name());
  if (found == ops.end()) d.fail(d.name() + " of 16-bit floats is not supported");
  auto [op, sources] = found->second;
  Instr& in = d.in;
  if (op <= kFma16) d.mod("rn");
  if (op >= kEx216 && !d.mod("approx")) d.fail(d.name() + " needs .approx");
  in.a[0] = op;
  if (d.mod("ftz")) in.a[1] |= kFtz16;
  if (op <= kFma16 && d.mod("sat")) in.a[1] |= kSat16;
  if ((op == kMin16 || op == kMax16) && d.mod("NaN")) in.a[1] |= kNan16;
  if (op == kFma16 && d.mod("relu")) in.a[1] |= kRelu16;
  T t = d.type_in({T::kF16, T::kBF16, T::kF16x2, T::kBF16x2});
  bool bf = t == T::kBF16 || t == T::kBF16x2;
  in.fn = bf ? Handler(do_16<Bf16Ops>) : Handler(do_16<F16Ops>);
  in.a[2] = t == T::kF16x2 || t == T::kBF16x2;
  d.need(1 + sources);
  in.o[0] = d.dst(0, t);
  for (size_t i = 1; i <= sources; ++i) in.o[i] = d.src(i, t);
  return true;
}

#define MLA_FTZ(name, ...) \
  (ftz ? Handler(alu<name<true>, __VA_ARGS__>) : Handler(alu<name<false>, __VA_ARGS__>))
#define MLA_FTZ_SAT(name, ...)                                                                              \
  (ftz ? (sat ? Handler(alu<name<true, true>, __VA_ARGS__>) : Handler(alu<name<true, false>, __VA_ARGS__>)) \
       : (sat ? Handler(alu<name<false, true>, __VA_ARGS__>)                                                \
              : Handler(alu<name<false, false>, __VA_ARGS__>)))

}  // namespace

bool decode_float(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  static const std::set<std::string> names = {"add",  "sub",   "mul", "fma", "mad",      "div",  "rcp",
                                              "sqrt", "rsqrt", "ex2", "lg2", "sin",      "cos",  "tanh",
                                              "min",  "max",   "neg", "abs", "copysign", "testp"};
  if (!names.count(name)) return false;
  if (has(d, {"f16", "bf16", "f16x2", "bf16x2"})) return decode_16(d);

  if (name == "add" || name == "sub" || name == "mul" || name == "fma" || name == "mad") {
    std::string mode = rounding(d);
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
    return true;
  }
  if (name == "div" || name == "rcp" || name == "sqrt") {
    std::string mode = d.one_of({"rn", "rz", "rm", "rp", "approx", "full"});
    bool ftz = d.mod("ftz");
    T t = d.type_in({T::kF32, T::kF64});
    if (mode.empty()) d.fail(name + " needs a rounding modifier or .approx");
    if (mode == "full" && name != "div") d.fail(".full is not supported for " + name);
    if (t == T::kF64 && (mode == "approx" || mode == "full"))
      d.fail(name + ".approx of .f64 is not supported");
    d.need(name == "div" ? 3 : 2);
    if (mode == "rn" || mode == "approx" || mode == "full") {
      if (t == T::kF64) {
        in.fn = name == "div"   ? Handler(alu<div64, double, double, double>)
                : name == "rcp" ? Handler(alu<rcp64, double, double>)
                                : Handler(alu<sqrt64, double, double>);
      } else if (name == "div") {
        in.fn = mode == "approx" ? MLA_FTZ(div_approx32, float, float, float)
                                 : MLA_FTZ(div32, float, float, float);
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
    return true;
  }
  if (name == "rsqrt" || name == "ex2" || name == "lg2" || name == "sin" || name == "cos" || name == "tanh") {
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
    return true;
  }
  if (name == "min" || name == "max") {
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
      return true;
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
    return true;
  }
  if (name == "neg" || name == "abs") {
    bool ftz = d.mod("ftz");
    T t = d.type_in({T::kF32, T::kF64});
    d.need(2);
    bool neg = name == "neg";
    in.fn = t == T::kF64 ? (neg ? Handler(alu<neg64, double, double>) : Handler(alu<abs64, double, double>))
            : neg        ? MLA_FTZ(neg32, float, float)
                         : MLA_FTZ(abs32, float, float);
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    return true;
  }
  if (name == "testp") {
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
    return true;
  }
  if (name == "copysign") {
    d.type_in({T::kF32});
    d.need(3);
    in.fn = alu<copysign32, float, float, float>;
    in.o[0] = d.dst(0, T::kF32);
    in.o[1] = d.src(1, T::kF32);
    in.o[2] = d.src(2, T::kF32);
    return true;
  }
  d.fail("instruction " + d.s.op_text + " is not supported");
}

// ---------------------------------------------------------------- conversions

namespace {

enum ConvertFlags : uint32_t { kFtzFlag = 1, kSatFlag = 2, kIntegral = 4, kRelu = 8, kSatFinite = 16 };

// a[1] rounding, a[2] flags.
template <class D, class A>
Next do_convert(Machine& m, const Instr& in, uint32_t mask) {
  const Round round = static_cast<Round>(in.a[1]);
  const uint32_t flags = in.a[2];
  constexpr bool from_int = std::is_integral_v<A>, to_int = std::is_integral_v<D>;
  // A source register may be wider than the type: the low bits count.
  const bool wide_source = in.a[3] & 1, wide_target = in.a[3] & 2;
  Store<D> r[32];
  for (int i = 0; i < 32; ++i) {
    uint64_t raw = wide_source ? lanes<uint64_t>(m, in.o[1])[i] : lanes<uint32_t>(m, in.o[1])[i];
    A a = from_lane<A>(static_cast<Store<A>>(raw));
    if constexpr (from_int && to_int) {
      D d = static_cast<D>(a);
      if (flags & kSatFlag) {
        __int128 v = a, low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
        d = static_cast<D>(v < low ? low : v > high ? high : v);
      }
      r[i] = to_lane<D>(d);
    } else if constexpr (to_int) {
      double v;
      if constexpr (std::is_same_v<A, Half>)
        v = f16_to_f32(a.bits);
      else if constexpr (std::is_same_v<A, Bfloat>)
        v = bf16_to_f32(a.bits);
      else if constexpr (std::is_same_v<A, float>)
        v = flags & kFtzFlag ? flush(a) : a;
      else
        v = a;
      r[i] = to_lane<D>(to_integer<D>(v, round, sizeof(A) == 8));
    } else {
      double v = 0;
      if constexpr (from_int) {
        if constexpr (std::is_same_v<D, float>) {
          float f = in_mode(round, [&] {
            volatile A x = a;
            volatile float y = static_cast<float>(x);
            return static_cast<float>(y);
          });
          if (flags & kSatFlag) f = f < 0 ? 0 : f > 1 ? 1 : f;
          r[i] = to_lane<float>(f);
          continue;
        } else {
          v = in_mode(round, [&] {
            volatile A x = a;
            volatile double y = static_cast<double>(x);
            return static_cast<double>(y);
          });
        }
      } else if constexpr (std::is_same_v<A, Half>) {
        v = f16_to_f32(a.bits);
      } else if constexpr (std::is_same_v<A, Bfloat>) {
        if constexpr (std::is_same_v<D, float>) {
          if (!(flags & (kIntegral | kSatFlag | kFtzFlag))) {  // bits move, NaN included
            r[i] = uint32_t{a.bits} << 16;
            continue;
          }
        }
        v = bf16_to_f32(a.bits);
      } else if constexpr (std::is_same_v<A, float>) {
        v = flags & kFtzFlag ? flush(a) : a;
      } else {
        v = a;
      }
      if (flags & kIntegral) v = v != v || std::isinf(v) ? v : std::copysign(round_to_integral(v, round), v);
      if constexpr (std::is_same_v<D, double> && std::is_same_v<A, float>) {
        if (flags & kFtzFlag) v = canonical(static_cast<float>(v));
      }
      if constexpr (std::is_same_v<D, double>) v = v != v ? quiet(v) : v;
      if (flags & kSatFlag) v = v != v ? 0 : v < 0 ? 0 : v > 1 ? 1 : v == 0 ? 0 : v;
      Round last = flags & kIntegral ? Round::kNearest : round;
      if constexpr (std::is_same_v<D, Half>) {
        uint16_t h = f16_from_double(v, last, flags & kSatFinite);
        if ((flags & kRelu) && (h & 0x8000) && (h & 0x7fff) <= 0x7c00) h = 0;
        r[i] = h;
      } else if constexpr (std::is_same_v<D, Bfloat>) {
        uint16_t h = bf16_from_double(v, last, flags & kSatFinite);
        if ((flags & kRelu) && (h & 0x8000) && (h & 0x7fff) <= 0x7f80) h = 0;
        r[i] = h;
      } else if constexpr (std::is_same_v<D, float>) {
        float f;
        if constexpr (std::is_same_v<A, double>) {
          f = in_mode(last, [&] {
            volatile double x = v;
            volatile float y = static_cast<float>(x);
            return static_cast<float>(y);
          });
        } else {
          f = static_cast<float>(v);
        }
        if (flags & kFtzFlag)
          f = std::is_same_v<A, double> && std::fabs(v) < 0x1p-126 ? std::copysign(0.0f, f) : flush(f);
        r[i] = to_lane<float>(std::is_same_v<A, double> ? f : canonical(f));
      } else {
        r[i] = to_lane<double>(v);
      }
    }
  }
  if (wide_target && sizeof(Store<D>) == 4) {
    // Into a wider register: sign- or zero-extended.
    uint64_t w[32];
    for (int i = 0; i < 32; ++i) {
      if constexpr (std::is_integral_v<D>) {
        w[i] = static_cast<uint64_t>(static_cast<int64_t>(from_lane<D>(r[i])));
      } else {
        w[i] = r[i];
      }
    }
    store_lanes(lanes<uint64_t>(m, in.o[0]), w, mask);
    return Next::kNext;
  }
  if constexpr (std::is_integral_v<D> && sizeof(D) < 4) {
    // 8- and 16-bit results may go to 16- or 32-bit registers.
    if (in.a[3] & 12) {
      uint32_t keep = in.a[3] & 4 ? 0xffff : ~0u;
      for (int i = 0; i < 32; ++i)
        r[i] = static_cast<uint32_t>(static_cast<int32_t>(from_lane<D>(r[i]))) & keep;
    }
  }
  store_lanes(lanes<D>(m, in.o[0]), r, mask);
  return Next::kNext;
}

template <class D>
Handler convert_from(T a) {
  switch (a) {
    case T::kU8:
      return do_convert<D, uint8_t>;
    case T::kS8:
      return do_convert<D, int8_t>;
    case T::kU16:
      return do_convert<D, uint16_t>;
    case T::kS16:
      return do_convert<D, int16_t>;
    case T::kU32:
      return do_convert<D, uint32_t>;
    case T::kS32:
      return do_convert<D, int32_t>;
    case T::kU64:
      return do_convert<D, uint64_t>;
    case T::kS64:
      return do_convert<D, int64_t>;
    case T::kF16:
      return do_convert<D, Half>;
    case T::kBF16:
      return do_convert<D, Bfloat>;
    case T::kF32:
      return do_convert<D, float>;
    case T::kF64:
      return do_convert<D, double>;
    default:
      return nullptr;
  }
}

Handler convert(T d, T a) {
  switch (d) {
    case T::kU8:
      return convert_from<uint8_t>(a);
    case T::kS8:
      return convert_from<int8_t>(a);
    case T::kU16:
      return convert_from<uint16_t>(a);
    case T::kS16:
      return convert_from<int16_t>(a);
    case T::kU32:
      return convert_from<uint32_t>(a);
    case T::kS32:
      return convert_from<int32_t>(a);
    case T::kU64:
      return convert_from<uint64_t>(a);
    case T::kS64:
      return convert_from<int64_t>(a);
    case T::kF16:
      return convert_from<Half>(a);
    case T::kBF16:
      return convert_from<Bfloat>(a);
    case T::kF32:
      return convert_from<float>(a);
    case T::kF64:
      return convert_from<double>(a);
    default:
      return nullptr;
  }
}

// Two floats (high first) to two packed values: a[0] kind.
enum Packed : uint32_t { kToF16x2, kToBf16x2, kToE4m3x2, kToE5m2x2, kToUe8m0x2 };

Next do_pack_floats(Machine& m, const Instr& in, uint32_t mask) {
  Source<float> high(m, in.o[1]), low(m, in.o[2]);
  const Round round = static_cast<Round>(in.a[1]);
  const uint32_t flags = in.a[2];
  uint32_t r[32];
  auto one = [&](float x) -> uint32_t {
    if ((flags & kRelu) && x < 0) x = 0;
    if ((flags & kRelu) && x == 0) x = 0;
    switch (in.a[0]) {
      case kToF16x2:
        return f16_from_double(x, round, flags & kSatFinite);
      case kToBf16x2:
        return bf16_from_double(x, round, flags & kSatFinite);
      case kToE4m3x2:
        return e4m3_from_double(x);
      case kToE5m2x2:
        return e5m2_from_double(x);
      default: {
        if (x != x) return 255;
        float v = std::fabs(x);
        if (v < 0x1p-127f) return round == Round::kUp && v > 0 ? 0 : 0;
        if (std::isinf(v)) return 254;
        int exponent = 0;
        float fraction = std::frexp(v, &exponent);
        int e = exponent - 1 + (round == Round::kUp && fraction > 0.5f) + 127;
        return static_cast<uint32_t>(std::clamp(e, 0, 254));
      }
    }
  };
  uint32_t shift = in.a[0] <= kToBf16x2 ? 16 : 8;
  for (int i = 0; i < 32; ++i) r[i] = one(high[i]) << shift | one(low[i]);
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

// f16x2 / bf16x2 to fp8 pairs and back: a[0] kind.
enum Repack : uint32_t { kF16x2ToE4m3x2, kF16x2ToE5m2x2, kE4m3x2ToF16x2, kE5m2x2ToF16x2, kUe8m0x2ToBf16x2 };

Next do_repack(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t* a = lanes<uint32_t>(m, in.o[1]);
  uint32_t r[32];
  const bool relu = in.a[2] & kRelu;
  auto to8 = [&](uint32_t h, bool e4m3) -> uint32_t {
    float x = f16_to_f32(static_cast<uint16_t>(h));
    if (relu && !(x > 0) && x == x) x = 0;
    return e4m3 ? e4m3_from_double(x) : e5m2_from_double(x);
  };
  auto to16 = [&](uint32_t b, bool e4m3) -> uint32_t {
    float x = e4m3 ? e4m3_to_f32(static_cast<uint8_t>(b)) : e5m2_to_f32(static_cast<uint8_t>(b));
    uint16_t h = f16_from_double(x);
    if (relu && (h & 0x8000) && (h & 0x7fff) <= 0x7c00) h = 0;
    return h;
  };
  for (int i = 0; i < 32; ++i) {
    switch (in.a[0]) {
      case kF16x2ToE4m3x2:
      case kF16x2ToE5m2x2: {
        bool e4m3 = in.a[0] == kF16x2ToE4m3x2;
        r[i] = to8(a[i] >> 16, e4m3) << 8 | to8(a[i] & 0xffff, e4m3);
        break;
      }
      case kE4m3x2ToF16x2:
      case kE5m2x2ToF16x2: {
        bool e4m3 = in.a[0] == kE4m3x2ToF16x2;
        r[i] = to16((a[i] >> 8) & 255, e4m3) << 16 | to16(a[i] & 255, e4m3);
        break;
      }
      default: {
        auto one = [](uint32_t b) -> uint32_t {
          return bf16_from_double(ue8m0_to_f32(static_cast<uint8_t>(b)));
        };
        r[i] = one((a[i] >> 8) & 255) << 16 | one(a[i] & 255);
      }
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

Next do_tf32(Machine& m, const Instr& in, uint32_t mask) {
  Source<float> a(m, in.o[1]);
  const Round round = static_cast<Round>(in.a[1]);
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    float x = a[i];
    if (x != x) {
      r[i] = f32_bits(x) & 0xffffe000;
    } else if (std::isinf(x)) {
      r[i] = in.a[2] & kSatFinite ? (f32_bits(x) & 0x80000000) | 0x7f7fe000 : f32_bits(x);
    } else {
      uint32_t magnitude = round_magnitude(std::fabs(x), {8, 10}, round, std::signbit(x)) << 13;
      if (magnitude >= 0x7f800000 && (in.a[2] & kSatFinite)) magnitude = 0x7f7fe000;
      r[i] = (f32_bits(x) & 0x80000000) | magnitude;
    }
    if ((in.a[2] & kRelu) && x < 0) r[i] = 0;
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

// Saturating pack of two s32 over the halves of c: cvt.pack.sat.{s16,u16,s8,u8}.s32.
Next do_cvt_pack(Machine& m, const Instr& in, uint32_t mask) {
  Source<int32_t> a(m, in.o[1]), b(m, in.o[2]);
  int32_t low = static_cast<int32_t>(in.a[0]), high = static_cast<int32_t>(in.a[1]);
  uint32_t bits = in.a[2];
  uint32_t keep = bits == 16 ? 0xffff : 0xff;
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    uint32_t x = static_cast<uint32_t>(std::clamp(a[i], low, high)) & keep,
             y = static_cast<uint32_t>(std::clamp(b[i], low, high)) & keep;
    r[i] = x << bits | y;
    if (bits == 8) {
      uint32_t c = in.o[3].present ? lanes<uint32_t>(m, in.o[3])[i] : 0;
      r[i] |= c << 16;
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

}  // namespace

bool decode_convert(Decoder& d) {
  if (d.name() != "cvt") return false;
  Instr& in = d.in;
  if (d.mod("pack")) {
    if (!d.mod("sat")) d.fail("cvt.pack needs .sat");
    T to = d.type_in({T::kS16, T::kU16, T::kS8, T::kU8});
    T from = d.type_in({T::kS32});
    bool eight = bits_of(to) == 8;
    if (eight) d.type_in({T::kB32});
    d.need(eight ? 4 : 3);
    in.fn = do_cvt_pack;
    in.a[0] = static_cast<uint32_t>(to == T::kS16 ? -32768 : to == T::kS8 ? -128 : 0);
    in.a[1] = to == T::kS16 ? 32767 : to == T::kU16 ? 65535 : to == T::kS8 ? 127 : 255;
    in.a[2] = bits_of(to);
    in.o[0] = d.dst(0, T::kB32);
    in.o[1] = d.src(1, from);
    in.o[2] = d.src(2, from);
    if (eight) in.o[3] = d.src(3, T::kB32);
    return true;
  }
  std::string mode = d.one_of({"rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"});
  bool ftz = d.mod("ftz"), sat = d.mod("sat"), relu = d.mod("relu"), satfinite = d.mod("satfinite");
  T to = d.type();
  T from = d.type();
  bool integral = mode.size() == 3 && mode != "rna";
  Round round = mode == "rna" ? Round::kNearestAway : round_of(mode.substr(0, 2));
  in.a[1] = static_cast<uint32_t>(round);
  in.a[2] =
      (ftz ? kFtzFlag : 0u) | (sat ? kSatFlag : 0u) | (relu ? kRelu : 0u) | (satfinite ? kSatFinite : 0u);
  if (to == T::kTF32) {
    if (from != T::kF32 || (mode != "rna" && mode != "rn" && mode != "rz"))
      d.fail(d.s.op_text + " is not supported");
    d.need(2);
    in.fn = do_tf32;
    in.o[0] = d.dst(0, T::kB32);
    in.o[1] = d.src(1, T::kF32);
    return true;
  }
  if (to == T::kF16x2 || to == T::kBF16x2 || to == T::kE4M3x2 || to == T::kE5M2x2 || to == T::kUE8M0x2) {
    if (mode.empty() || integral || mode == "rna") d.fail(d.s.op_text + " needs a rounding modifier");
    if (sat || ftz) d.fail(d.s.op_text + " is not supported");
    if (from == T::kF32) {
      d.need(3);
      bool eight = to == T::kE4M3x2 || to == T::kE5M2x2;
      if (eight && (mode != "rn" || !satfinite)) d.fail("cvt to fp8 needs .rn.satfinite");
      if (to == T::kUE8M0x2 && (mode == "rn" || mode == "rm" || !satfinite))
        d.fail("cvt to ue8m0x2 needs .rz or .rp and .satfinite");
      if (to == T::kF16x2 || to == T::kBF16x2) {
        if (mode != "rn" && mode != "rz")
          d.fail("cvt to " + std::string(type_name(to)) + " rounds with .rn or .rz");
      }
      in.fn = do_pack_floats;
      in.a[0] = to == T::kF16x2    ? kToF16x2
                : to == T::kBF16x2 ? kToBf16x2
                : to == T::kE4M3x2 ? kToE4m3x2
                : to == T::kE5M2x2 ? kToE5m2x2
                                   : kToUe8m0x2;
      in.o[0] = d.dst(d.operand(0), bits_of(to));
      in.o[1] = d.src(1, T::kF32);
      in.o[2] = d.src(2, T::kF32);
      return true;
    }
    d.need(2);
    in.fn = do_repack;
    if (to == T::kE4M3x2 && from == T::kF16x2 && mode == "rn" && satfinite) {
      in.a[0] = kF16x2ToE4m3x2;
    } else if (to == T::kE5M2x2 && from == T::kF16x2 && mode == "rn" && satfinite) {
      in.a[0] = kF16x2ToE5m2x2;
    } else if (to == T::kF16x2 && from == T::kE4M3x2 && mode == "rn") {
      in.a[0] = kE4m3x2ToF16x2;
    } else if (to == T::kF16x2 && from == T::kE5M2x2 && mode == "rn") {
      in.a[0] = kE5m2x2ToF16x2;
    } else if (to == T::kBF16x2 && from == T::kUE8M0x2 && mode == "rn") {
      in.a[0] = kUe8m0x2ToBf16x2;
    } else {
      d.fail(d.s.op_text + " is not supported");
    }
    in.o[0] = d.dst(d.operand(0), bits_of(to));
    in.o[1] = d.src(d.operand(1), from);
    return true;
  }
  d.need(2);
  in.fn = convert(to, from);
  if (!in.fn) d.fail(d.s.op_text + " is not supported");
  bool to_float = is_float(to), from_float = is_float(from);
  if (mode == "rna") d.fail(".rna is supported for .tf32 only");
  if (from_float && !to_float && !integral)
    d.fail("cvt from float to integer needs an integer rounding modifier");
  if (to_float && !from_float && (mode.empty() || integral))
    d.fail("cvt from integer to float needs a rounding modifier");
  if (to_float && from_float && bits_of(to) < bits_of(from) && mode.empty())
    d.fail("cvt to a smaller float needs a rounding modifier");
  if ((relu || satfinite) && to != T::kF16 && to != T::kBF16) d.fail(d.s.op_text + " is not supported");
  if (integral && to_float) in.a[2] |= kIntegral;
  if (to_float && from_float && !integral && mode.empty()) in.a[1] = static_cast<uint32_t>(Round::kNearest);
  uint32_t to_bits = bits_of(to), from_bits = bits_of(from);
  in.o[0] = d.dst(d.operand(0), to_bits, true);
  in.o[1] = d.src(d.operand(1), from, true);
  const Operand &target = d.operand(0), &source = d.operand(1);
  uint32_t target_bits = target.kind == Operand::kReg ? d.register_bits(target.reg) : to_bits;
  uint32_t source_bits = source.kind == Operand::kReg ? d.register_bits(source.reg) : from_bits;
  if (source_bits > 32) in.a[3] |= 1;
  if (target_bits > 32) in.a[3] |= 2;
  if (to_bits < 32 && target_bits > to_bits) in.a[3] |= target_bits == 16 ? 4u : 8u;
  return true;
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of f16, bf16 and pairs of them.
#include <algorithm>
#include <map>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/arithmetic.h"
#include "tests/emulator/engine/instructions/float_rules.h"

namespace mla::emu {

namespace {

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

}  // namespace

// fma, add, sub, mul, min, max, neg, abs, ex2, tanh of f16, bf16, f16x2, bf16x2.
void decode_float16(Decoder& d) {
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
}

}  // namespace mla::emu

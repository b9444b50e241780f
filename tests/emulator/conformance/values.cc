// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/conformance/values.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace mla::conformance {
namespace {

using Edges = std::vector<uint64_t>;

uint64_t f32_bits(float value) { return std::bit_cast<uint32_t>(value); }

const Edges& edges_of(std::string_view type) {
  static const Edges kInt16 = {0,    1,     2,      7,      8,      15,     16,     0x7f,  0x80,
                               0xff, 0x100, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
  static const Edges kInt32 = {0,          1,          2,          3,          31,         32,
                               33,         0x7f,       0x80,       0xff,       0x100,      0x7fff,
                               0x8000,     0xffff,     0x10000,    0x55555555, 0xaaaaaaaa, 0x7ffffffe,
                               0x7fffffff, 0x80000000, 0x80000001, 0xffff0000, 0xfffffffe, 0xffffffff};
  static const Edges kInt64 = {0,
                               1,
                               2,
                               63,
                               64,
                               65,
                               0x7fffffff,
                               0x80000000,
                               0xffffffff,
                               0x100000000,
                               0x5555555555555555,
                               0xaaaaaaaaaaaaaaaa,
                               0x7fffffffffffffff,
                               0x8000000000000000,
                               0x8000000000000001,
                               0xffffffff00000000,
                               0xfffffffffffffffe,
                               0xffffffffffffffff};
  static const Edges kShift = {0,  1,  2,  5,  15,  16,  17,  31,         32,
                               33, 63, 64, 65, 127, 255, 256, 0x80000000, 0xffffffff};
  static const Edges kF32 = {0x00000000,
                             0x80000000,
                             0x00000001,
                             0x80000001,
                             0x007fffff,
                             0x807fffff,
                             0x00800000,
                             0x80800000,
                             0x7f7fffff,
                             0xff7fffff,
                             0x7f800000,
                             0xff800000,
                             0x7fc00000,
                             0xffc00001,
                             0x7f800001,
                             0x3f800000,
                             0xbf800000,
                             0x3f000000,
                             0xbf000000,
                             0x3fc00000,
                             0xbfc00000,
                             0x40200000,
                             0xc0200000,
                             0x3effffff,
                             0x4b000000,
                             0x4b800001,
                             0x4f000000,
                             0xcf000000,
                             0x4f800000,
                             0x5f000000,
                             0x43e00000 /* 448 */,
                             0x43e80000 /* 464 */,
                             0x43e80001,
                             0xc3f00000,
                             0x47600000 /* 57344 */,
                             0x47700000 /* 61440 */,
                             0x477fe000,
                             0x477ff000,
                             0x3b000000 /* 2^-9 */,
                             0x3a800000 /* 2^-10 */,
                             0x3ac00000,
                             0x33800000,
                             0x33000000,
                             0x37800000,
                             0x3f808000,
                             0x3f818000,
                             0x3f801000,
                             0x3f803000,
                             0x40490fdb,
                             0x7f7f8000,
                             0x7f7f7fff,
                             0x42b17218,
                             0xc2aeac50};
  static const Edges kF64 = {0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x800fffffffffffff,
                             0x0010000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                             0x7ff8000000000000, 0xfff0000000000001, 0x3ff0000000000000, 0xbff0000000000000,
                             0x3fe0000000000000, 0x4004000000000000, 0xc004000000000000, 0x41dfffffffc00000,
                             0x41e0000000000000, 0x43e0000000000000, 0x36a0000000000000, 0x380fffffe0000000,
                             0x47efffffefffffff, 0x47effffff0000000, 0x3ff0000010000000, 0x3ff0000030000000};
  static const Edges kF16 = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x7bff,
                             0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x3c00, 0xbc00, 0x3800,
                             0x3e00, 0xc100, 0x5f00, 0x5f40, 0x6400, 0x6801, 0x7b00, 0x1c00};
  static const Edges kBF16 = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080,
                              0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x3f80,
                              0xbf80, 0x3f00, 0x3fc0, 0xc020, 0x4300, 0x43e0, 0x4b00, 0x4f00};
  if (type == "f32") return kF32;
  if (type == "f64") return kF64;
  if (type == "f16" || type == "f16x2") return kF16;
  if (type == "bf16" || type == "bf16x2") return kBF16;
  if (type == "sh") return kShift;
  switch (bits_of(type)) {
    case 16:
      return kInt16;
    case 32:
      return kInt32;
    default:
      return kInt64;
  }
}

uint32_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Nearest value of a small float format with `mantissa` bits, bias and no special values in reach.
uint32_t to_small(double value, int mantissa, int bias, int exponent_bits) {
  const uint32_t sign = std::signbit(value) ? 1u << (mantissa + exponent_bits) : 0;
  value = std::fabs(value);
  if (value == 0) return sign;
  int exponent = std::max(std::ilogb(value), 1 - bias);
  double scaled = std::nearbyint(std::ldexp(value, mantissa - exponent));
  if (scaled >= std::ldexp(2.0, mantissa)) {
    scaled /= 2;
    ++exponent;
  }
  const uint32_t units = uint32_t(scaled);
  if (units < (1u << mantissa)) return sign | units;  // subnormal
  return sign | uint32_t(exponent + bias) << mantissa | (units & ((1u << mantissa) - 1));
}

uint32_t element(std::string_view type, double value) {
  if (type.substr(0, 4) == "e4m3") return to_small(value, 3, 7, 4);
  if (type.substr(0, 4) == "e5m2") return to_small(value, 2, 15, 5);
  if (type.substr(0, 4) == "bf16") return to_bf16(float(value));
  if (type.substr(0, 3) == "f16") return to_small(value, 10, 15, 5);
  return std::bit_cast<uint32_t>(float(value));
}

uint64_t packed(std::string_view type, Random* random, bool integers) {
  const int bits = type[0] == 'e' ? 8 : type.substr(0, 3) == "f32" ? 32 : 16;
  uint64_t word = 0;
  for (int i = 0; i < 32 / bits; ++i) {
    const double value = integers ? double(random->below(9)) - 4 : random->normal();
    word |= uint64_t(element(type, value)) << (bits * i);
  }
  return word;
}

uint64_t random_value(std::string_view type, Random* random) {
  if (type.back() == 'n') return packed(type, random, false);
  if (type.back() == 'i') return packed(type, random, true);
  if (type == "b8x4" || type == "b8x2") return random->next();
  if (type == "lane") return random->below(32);
  if (type == "sh") return random->below(80);
  if (type == "ue8m0x4") {
    uint64_t word = 0;
    for (int i = 0; i < 4; ++i) word |= (120 + random->below(15)) << (8 * i);
    return word;
  }
  const Edges& edges = edges_of(type);
  const uint64_t kind = random->below(4);
  const auto one = [&]() -> uint64_t {
    if (kind == 0) return edges[random->below(edges.size())];
    if (kind == 1 || type[0] == 's' || type[0] == 'u') {
      // Random bits, of a random magnitude for integers.
      const uint64_t bits = random->next();
      const bool floating = type[0] == 'f' || type.substr(0, 2) == "bf";
      return floating ? bits : bits >> random->below(uint64_t(bits_of(type)));
    }
    if (type == "f32") return f32_bits(float(random->normal() * (kind == 2 ? 1 : 300)));
    if (type == "f64") return std::bit_cast<uint64_t>(random->normal() * (kind == 2 ? 1 : 300));
    if (type[0] == 'f' || type[0] == 'b') {
      if (type[0] == 'f' || type[1] == 'f') return element(type, random->normal() * (kind == 2 ? 1 : 30));
    }
    return random->next();
  };
  if (type == "f16x2" || type == "bf16x2") {
    const uint64_t low = one() & 0xffff;
    return low | (one() & 0xffff) << 16;
  }
  uint64_t value = one();
  if (type == "div32" && (uint32_t(value) == 0 || uint32_t(value) == 0xffffffff)) value = 3;
  if (type == "div64" && (value == 0 || value == ~uint64_t(0))) value = 3;
  return value;
}

bool has_edges(std::string_view type) {
  return type == "f32" || type == "f64" || type == "f16" || type == "bf16" || type == "sh" || type == "b16" ||
         type == "u16" || type == "s16" || type == "b32" || type == "u32" || type == "s32" || type == "b64" ||
         type == "u64" || type == "s64";
}

uint64_t mask_of(std::string_view type) {
  const int bits = bits_of(type);
  return bits == 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1;
}

}  // namespace

int bits_of(std::string_view type) {
  if (type == "b16" || type == "u16" || type == "s16" || type == "f16" || type == "bf16" || type == "b8x2")
    return 16;
  if (type == "b64" || type == "u64" || type == "s64" || type == "f64" || type == "div64") return 64;
  return 32;
}

uint64_t hash64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3;
  return hash;
}

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Sum of twelve uniforms: near enough to N(0, 1), and without a math library that could differ
// from machine to machine.
double Random::normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += double(next() >> 11) * 0x1p-53;
  return sum;
}

std::vector<Values> make_inputs(const Case& c, uint64_t seed) {
  Random random(hash64(c.name) ^ (seed * 0x9e3779b97f4a7c15));
  const uint32_t threads = c.threads();
  std::vector<Values> inputs(c.in.size(), Values(threads));
  for (uint32_t t = 0; t < threads; ++t) {
    for (size_t i = 0; i < c.in.size(); ++i) inputs[i][t] = random_value(c.in[i], &random) & mask_of(c.in[i]);
  }
  if (c.exhaustive) {
    for (uint32_t t = 0; t < threads; ++t) inputs[0][t] = t & mask_of(c.in[0]);
  } else if (c.in.size() == 1 && has_edges(c.in[0])) {
    const Edges& edges = edges_of(c.in[0]);
    for (uint32_t t = 0; t < threads && t < edges.size(); ++t) inputs[0][t] = edges[t];
  } else if (c.in.size() == 2 && has_edges(c.in[0]) && has_edges(c.in[1])) {
    const Edges &first = edges_of(c.in[0]), &second = edges_of(c.in[1]);
    // Every pair, as far as half of the threads suffice; then with the operands' roles changed.
    const size_t pairs = first.size() * second.size();
    const size_t step = pairs * 4 > size_t(threads) * 3 ? 7 : 1;  // coprime with the list lengths
    for (size_t t = 0; t < threads * 3 / 4 && t < pairs; ++t) {
      const size_t pair = t * step % pairs;
      inputs[0][t] = first[pair / second.size()];
      inputs[1][t] = second[pair % second.size()];
    }
  }
  return inputs;
}

std::vector<uint8_t> make_source() {
  Random random(hash64("source"));
  std::vector<uint8_t> bytes(kSrcBytes);
  for (uint8_t& byte : bytes) byte = uint8_t(random.next());
  return bytes;
}

double e4m3_to_double(uint8_t bits) {
  const double sign = bits & 0x80 ? -1 : 1;
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9));
}

double to_double(std::string_view type, uint64_t bits) {
  if (type == "f64") return std::bit_cast<double>(bits);
  if (type == "bf16") return std::bit_cast<float>(uint32_t(bits) << 16);
  if (type == "f32") return std::bit_cast<float>(uint32_t(bits));
  if (type != "f16") throw std::logic_error("to_double: type " + std::string(type));
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

}  // namespace mla::conformance

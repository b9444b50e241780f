// SPDX-License-Identifier: Apache-2.0
//
// Input values by operand type: every edge value (and, for two operands, every pair of them), then
// a mixture of edges, random bits and ordinary numbers. The same seed gives the same values everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/emulator/conformance/case.h"

namespace mla::conformance {

// Types:
//   b16 u16 s16  b32 u32 s32  b64 u64 s64   integers
//   sh            shift amounts (32 bits)
//   lane          0...31 (32 bits)
//   div32 div64   divisors: neither 0 nor -1
//   f32 f64 f16 bf16 f16x2 bf16x2           any value, NaN and infinity included
//   f32n f16x2n bf16x2n e4m3x4n e5m2x4n     N(0, 1)
//   f32i f16x2i bf16x2i e4m3x4i e5m2x4i     integers -4...4, for exact sums
//   b8x4          four random bytes
//   b8x2          two bytes (16 bits)
//   ue8m0x4       four power-of-two scales near 1
int bits_of(std::string_view type);

uint64_t hash64(std::string_view text);

// Values of every operand of a case, by operand.
std::vector<Values> make_inputs(const Case& c, uint64_t seed);

// The fixed random bytes behind psrc.
std::vector<uint8_t> make_source();

// Conversions of single values, for `expect` functions and for comparing floats.
double to_double(std::string_view type, uint64_t bits);
double e4m3_to_double(uint8_t bits);

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  uint64_t below(uint64_t bound) { return next() % bound; }
  double normal();

 private:
  uint64_t state_;
};

}  // namespace mla::conformance

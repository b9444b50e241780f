// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/number_formats.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace mla::reference {

namespace {

std::array<double, 256> make_table() {
  std::array<double, 256> table;
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    double value;
    if (exponent == 15 && mantissa == 7) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      value = std::ldexp(mantissa, -9);
    } else {
      value = std::ldexp(8 + mantissa, exponent - 10);
    }
    table[code] = (code & 0x80) ? -value : value;
  }
  return table;
}

}  // namespace

const double* e4m3_table() {
  static const std::array<double, 256> table = make_table();
  return table.data();
}

float e4m3_to_float(uint8_t code) { return static_cast<float>(e4m3_table()[code]); }

uint8_t to_e4m3(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 56) & 0x80);
  const uint64_t magnitude_bits = bits & 0x7fffffffffffffffu;
  const double magnitude = std::bit_cast<double>(magnitude_bits);
  if (magnitude != magnitude) return kE4M3NaN;
  if (magnitude >= kE4M3Max) return sign | 0x7e;
  if (magnitude < 0x1p-6) {
    // Subnormals, in steps of 2^-9. Eight steps are the code of the smallest normal number.
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 512.0));
  }
  constexpr int kDropped = 52 - 3;
  const uint64_t odd = (magnitude_bits >> kDropped) & 1;
  const uint64_t rounded = magnitude_bits + (uint64_t{1} << (kDropped - 1)) - 1 + odd;
  const uint64_t code = (rounded >> kDropped) - (uint64_t{1023 - 7} << 3);
  return sign | static_cast<uint8_t>(code > 0x7e ? 0x7e : code);
}

float bf16_to_float(uint16_t code) { return std::bit_cast<float>(static_cast<uint32_t>(code) << 16); }

uint16_t float_to_bf16(float value) {
  if (value != value) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace mla::reference

// SPDX-License-Identifier: Apache-2.0
//
// Number formats and the arithmetic rules of PTX: flushing, canonical NaN, rounding, saturation.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace mla::emu {

enum class Round : uint8_t { kNearest, kZero, kDown, kUp, kNearestAway };

inline constexpr uint32_t kNanF32 = 0x7fffffff;
inline constexpr uint16_t kNanF16 = 0x7fff;

inline uint32_t f32_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float f32_from(uint32_t bits) { return std::bit_cast<float>(bits); }

// Subnormals to zero of the same sign.
inline float flush(float x) {
  uint32_t bits = f32_bits(x);
  return (bits & 0x7f800000) ? x : f32_from(bits & 0x80000000);
}

// Results of arithmetic carry one NaN pattern only.
inline float canonical(float x) { return x != x ? f32_from(kNanF32) : x; }
// In double precision a NaN operand goes through, quieted.
inline double quiet(double x) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) | uint64_t{1} << 51);
}
// The NaN that an operation gives whose operands are looked at in this order.
inline double nan_of(double first, double second, double third = 0) {
  return first != first     ? quiet(first)
         : second != second ? quiet(second)
         : third != third   ? quiet(third)
                            : std::bit_cast<double>(uint64_t{0xfff8000000000000});
}

struct SmallFormat {
  int exponent_bits, mantissa_bits;
};

inline constexpr SmallFormat kF16Format{5, 10};
inline constexpr SmallFormat kBf16Format{8, 7};
inline constexpr SmallFormat kE4m3Format{4, 3};
inline constexpr SmallFormat kE5m2Format{5, 2};

// Rounds |x| (finite) to a format; the encoding may run past the format's largest finite value, which
// the caller handles.
inline uint32_t round_magnitude(double x, SmallFormat format, Round round, bool negative) {
  uint64_t bits = std::bit_cast<uint64_t>(x) & ~(uint64_t{1} << 63);
  if (bits == 0) return 0;
  int exponent = static_cast<int>(bits >> 52);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 0) {
    exponent = 1;
  } else {
    mantissa |= uint64_t{1} << 52;
  }
  exponent -= 1023;
  int bias = (1 << (format.exponent_bits - 1)) - 1;
  int smallest = 1 - bias;
  int quantum = (exponent > smallest ? exponent : smallest) - format.mantissa_bits;
  int shift = quantum - (exponent - 52);
  uint64_t kept = shift >= 64 ? 0 : mantissa >> shift;
  uint64_t rest = shift >= 64 ? mantissa : mantissa & ((uint64_t{1} << shift) - 1);
  bool up = false;
  if (rest) {
    switch (round) {
      case Round::kNearest: {
        if (shift <= 63) {
          uint64_t half = uint64_t{1} << (shift - 1);
          up = rest > half || (rest == half && (kept & 1));
        }
        break;
      }
      case Round::kNearestAway:
        up = shift <= 63 && rest >= uint64_t{1} << (shift - 1);
        break;
      case Round::kZero:
        break;
      case Round::kDown:
        up = negative;
        break;
      case Round::kUp:
        up = !negative;
        break;
    }
  }
  kept += up;
  if (exponent >= smallest) {
    return static_cast<uint32_t>((static_cast<uint64_t>(exponent + bias) << format.mantissa_bits) + kept -
                                 (uint64_t{1} << format.mantissa_bits));
  }
  return static_cast<uint32_t>(kept);
}

inline uint16_t f16_like_from_double(double x, SmallFormat format, uint32_t infinity, Round round,
                                     bool saturate_finite) {
  if (x != x) return kNanF16;
  bool negative = std::signbit(x);
  uint32_t sign = negative ? 0x8000 : 0;
  if (std::isinf(x)) return static_cast<uint16_t>(sign | (saturate_finite ? infinity - 1 : infinity));
  uint32_t magnitude = round_magnitude(std::fabs(x), format, round, negative);
  if (magnitude >= infinity) {
    bool to_finite = saturate_finite || round == Round::kZero || (round == Round::kDown && !negative) ||
                     (round == Round::kUp && negative);
    magnitude = to_finite ? infinity - 1 : infinity;
  }
  return static_cast<uint16_t>(sign | magnitude);
}

inline uint16_t f16_from_double(double x, Round round = Round::kNearest, bool saturate_finite = false) {
  return f16_like_from_double(x, kF16Format, 0x7c00, round, saturate_finite);
}
inline uint16_t bf16_from_double(double x, Round round = Round::kNearest, bool saturate_finite = false) {
  return f16_like_from_double(x, kBf16Format, 0x7f80, round, saturate_finite);
}

inline float f16_to_f32(uint16_t h) {
  uint32_t sign = uint32_t{h & 0x8000u} << 16;
  uint32_t magnitude = h & 0x7fff;
  if (magnitude > 0x7c00) return f32_from(kNanF32);
  if (magnitude == 0x7c00) return f32_from(sign | 0x7f800000);
  if (magnitude >= 0x400) return f32_from(sign | ((magnitude << 13) + ((127 - 15) << 23)));
  float value = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -value : value;
}

inline float bf16_to_f32(uint16_t h) {
  float value = f32_from(uint32_t{h} << 16);
  return canonical(value);
}

// satfinite is implied: PTX has no other form to the 8-bit formats.
inline uint8_t e4m3_from_double(double x) {
  if (x != x) return 0x7f;
  bool negative = std::signbit(x);
  uint8_t sign = negative ? 0x80 : 0;
  if (std::isinf(x)) return sign | 0x7e;
  uint32_t magnitude = round_magnitude(std::fabs(x), kE4m3Format, Round::kNearest, negative);
  return static_cast<uint8_t>(sign | (magnitude > 0x7e ? 0x7e : magnitude));
}

inline uint8_t e5m2_from_double(double x) {
  if (x != x) return 0x7f;
  bool negative = std::signbit(x);
  uint8_t sign = negative ? 0x80 : 0;
  if (std::isinf(x)) return sign | 0x7b;
  uint32_t magnitude = round_magnitude(std::fabs(x), kE5m2Format, Round::kNearest, negative);
  return static_cast<uint8_t>(sign | (magnitude > 0x7b ? 0x7b : magnitude));
}

inline float e4m3_to_f32(uint8_t b) {
  uint32_t exponent = (b >> 3) & 15, mantissa = b & 7;
  if ((b & 0x7f) == 0x7f) return f32_from(kNanF32);
  float value = exponent ? std::ldexp(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10)
                         : static_cast<float>(mantissa) * 0x1p-9f;
  return b & 0x80 ? -value : value;
}

inline float e5m2_to_f32(uint8_t b) { return f16_to_f32(static_cast<uint16_t>(b << 8)); }

// Scale factors of block-scaled mma: 2^(b - 127); 255 is NaN.
inline float ue8m0_to_f32(uint8_t b) {
  return b == 255 ? f32_from(kNanF32) : std::ldexp(1.0f, static_cast<int>(b) - 127);
}

// Runs f in a rounding mode of the CPU.
template <class F>
inline auto in_mode(Round round, F f) {
  int mode = round == Round::kZero   ? FE_TOWARDZERO
             : round == Round::kDown ? FE_DOWNWARD
             : round == Round::kUp   ? FE_UPWARD
                                     : FE_TONEAREST;
  int before = std::fegetround();
  std::fesetround(mode);
  auto result = f();
  std::fesetround(before);
  return result;
}

inline double round_to_integral(double x, Round round) {
  switch (round) {
    case Round::kZero:
      return std::trunc(x);
    case Round::kDown:
      return std::floor(x);
    case Round::kUp:
      return std::ceil(x);
    case Round::kNearestAway:
      return std::round(x);
    default:
      return std::nearbyint(x);
  }
}

// Float to integer: clamps; NaN gives 0, or the top bit alone where source or result has 64 bits.
template <class I>
inline I to_integer(double x, Round round, bool wide_source) {
  if (x != x)
    return sizeof(I) == 8 || (wide_source && sizeof(I) == 4)
               ? static_cast<I>(std::make_unsigned_t<I>{1} << (8 * sizeof(I) - 1))
               : I{0};
  x = round_to_integral(x, round);
  constexpr double low = static_cast<double>(std::numeric_limits<I>::min());
  const double high = std::ldexp(1.0, std::numeric_limits<I>::digits);
  if (x < low) return std::numeric_limits<I>::min();
  if (x >= high) return std::numeric_limits<I>::max();
  return static_cast<I>(x);
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Exact conversions of the number formats of the caches: e4m3 (OCP FP8 E4M3: bias 7, largest 448,
// 0x7f and 0xff are NaN, no infinity) and bf16. All functions are pure and thread-safe.
#pragma once

#include <cstdint>

namespace mla::reference {

inline constexpr uint8_t kE4M3NaN = 0x7f;
inline constexpr double kE4M3Max = 448.0;

// Value of an e4m3 code; exact.
float e4m3_to_float(uint8_t code);

// Rounds to nearest, ties to even; magnitudes above 448 (infinities too) saturate to 448, NaN gives
// 0x7f. The same as cvt.rn.satfinite.e4m3x2.f32 for every float.
uint8_t to_e4m3(double value);

// Value of a bf16 code; exact.
float bf16_to_float(uint16_t code);

// Rounds to nearest, ties to even; overflow gives an infinity, NaN the quiet NaN 0x7fff.
uint16_t float_to_bf16(float value);

// The 256 values of e4m3 as doubles, indexed by code.
const double* e4m3_table();

}  // namespace mla::reference

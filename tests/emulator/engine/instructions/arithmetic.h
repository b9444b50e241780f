// SPDX-License-Identifier: Apache-2.0
//
// Decoders of names that integers, 16-bit floats and f32 or f64 share; arithmetic.cc tells them apart.
#pragma once

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

// add, sub, min, max, div, rem
void decode_integer_arithmetic(Decoder& d);
// mul, mad
void decode_integer_multiply(Decoder& d);
// neg, abs
void decode_integer_sign(Decoder& d);

// add, sub, mul, fma, mad
void decode_float_arithmetic(Decoder& d);
// div, rcp, sqrt
void decode_float_division(Decoder& d);
// rsqrt, ex2, lg2, sin, cos, tanh
void decode_float_function(Decoder& d);
void decode_float_minmax(Decoder& d);
void decode_float_sign(Decoder& d);

// All of f16, bf16, f16x2, bf16x2.
void decode_float16(Decoder& d);

}  // namespace mla::emu

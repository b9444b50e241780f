// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

// c[16][8] += a[16][k] * b[k][8], each sum in ascending order of k. 64-byte aligned.
void mma_16x8(const float* a, const float* b, float* c, uint32_t k);
// The same in double, rounded to float once: products of bf16 may exceed float's range.
void mma_16x8_wide(const float* a, const float* b, float* c, uint32_t k);
// c[16][n] += a[16][k] * b[k][n], the same two ways; n a multiple of 8.
void mma_16xn(const float* a, const float* b, float* c, uint32_t k, uint32_t n);
void mma_16xn_wide(const float* a, const float* b, float* c, uint32_t k, uint32_t n);

// The accumulator of Hopper's wgmma on 8-bit floats: products and C are cut off (towards zero) below
// 2^-kNarrowBits of the binade of the largest of them, added exactly, and the sum is cut off to as many
// bits behind its first. The binade of a product is the sum of its operands', whose least ones (of
// subnormals) are given: -6 for e4m3, -14 for e5m2.
inline constexpr int kNarrowBits = 13;
void mma_16xn_narrow(const float* a, const float* b, float* c, uint32_t k, uint32_t n, int least_a,
                     int least_b);

// Converts n e4m3 values, exactly.
void e4m3_to_floats(const uint8_t* from, float* to, uint32_t n);

}  // namespace mla::emu

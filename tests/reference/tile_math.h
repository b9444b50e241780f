// SPDX-License-Identifier: Apache-2.0
//
// The two matrix products of one KV tile in float64. One source, built for the baseline instruction
// set and for AVX2; tile_math() picks at run time.
#pragma once

namespace mla::reference {

inline constexpr int kTile = 64;  // tokens of a tile
inline constexpr int kMaxDepth = 576;
inline constexpr int kRowBlock = 4;  // rows are processed in blocks; callers pad to a multiple

struct TileMath {
  // scores[row][token] = sum_d q[row][d] * keys[d][token]; q [rows][depth], keys [depth][kTile].
  void (*scores)(const double* q, int rows, const double* keys, int depth, double* scores);
  // The same as wgmma sums it for e4m3 on sm_90: 32 products at a time, these and the sum so far as
  // whole multiples of 2^-13 of the exponent of the largest, the result cut off to 14 bits.
  // depth is a multiple of 32 and at most kMaxDepth.
  void (*narrow_scores)(const double* q, int rows, const double* keys, int depth, double* scores);
  // acc[row][d] = acc[row][d] * factor[row] + sum_token p[row][token] * values[token][d];
  // p [rows][kTile], values [tokens][width], acc [rows][width]; width a multiple of 8.
  void (*accumulate)(const double* p, int rows, const double* values, int tokens, int width,
                     const double* factor, double* acc);
};

const TileMath& tile_math();

}  // namespace mla::reference

// SPDX-License-Identifier: Apache-2.0
//
// Constants of how the Hopper family quantises P, all in log2. Plain C++: the kernels and the tests'
// model of them (tests/reference/hopper_model.h) share it.
#pragma once

namespace mla::hopper {

inline constexpr int kTileTokens = 64;
inline constexpr int kPairTiles = 2;  // that have their references in common

// P is scaled so that the row's reference becomes the largest e4m3 value. A new reference lies kMargin
// above the maximum of its pair of tiles, so that it lasts; it is kept while the maxima are not above it and
// some P of the pair before is at least kHigh.
inline constexpr float kLog2PMax = 8.807354922057604f;  // log2(448)
inline constexpr float kMargin = 3.f;
inline constexpr float kHigh = 0.5f;
// A pair may be ruled by a single token if its maximum is so far above those before.
inline constexpr float kFall = 4.f;
// There, tokens further below the maximum than this are multiplied by themselves: P of those down to
// it are normal numbers of e4m3, 2^-6 or more.
inline constexpr float kSpread = 11.5f;

// A reference never falls further than this below the highest one: float accumulators hold what is between.
inline constexpr float kDepth = 64.f;

}  // namespace mla::hopper

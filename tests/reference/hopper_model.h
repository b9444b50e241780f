// SPDX-License-Identifier: Apache-2.0
//
// The model of how the Hopper family quantises P. Its constants: kernels/hopper/quantisation.h.
//
// There is a reference for every row, which the largest e4m3 value stands for:
//
//   p = e4m3(448 * 2^(score - reference))
//
// A new one, kMargin above the largest visible score of the tile, is chosen for the first tile of a piece,
// for a score above the reference, and after two tiles of which no p was as large as kHigh. (A tile
// without visible scores never changes it; none lies more than kDepth below the highest.) Where this
// happens more than kFall above the maxima that gave the references before, a single token may rule:
// tokens more than kSpread below it are then left to a second part with a reference chosen for them, which
// stays the row's.
//
// The output is normalised by the sum of p; what the pieces have is added up without further rounding.
#pragma once

#include <limits>

namespace mla::reference {

// What is known of a row. A new one for every piece.
struct HopperRow {
  double reference = -std::numeric_limits<double>::infinity();  // log2
  double highest = -std::numeric_limits<double>::infinity();    // maximum that gave a reference
  double top = -std::numeric_limits<double>::infinity();        // highest reference
  bool high = false;                                            // some p of the tile before was
  bool high_before = false;                                     // the same of the one before that
};

// Quantises the next tile of the piece. `scores` of `tokens` tokens are in log2, -infinity where
// hidden. Gives the weights p relative to 2^(the value returned) / 448: the highest reference among its
// parts, -infinity if no score is visible. A NaN gives a NaN and counts as no score.
double quantise_hopper_tile(const double* scores, int tokens, HopperRow& row, double* p);

}  // namespace mla::reference

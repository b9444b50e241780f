// SPDX-License-Identifier: Apache-2.0
//
// The model of how the Hopper family quantises P. Its constants: kernels/hopper/quantisation.h.
//
// A worker takes the tiles of its piece of an item in pairs. There is a reference for every row, which the
// largest e4m3 value stands for:
//
//   p = e4m3(448 * 2^(score - reference))
//
// A new one, kMargin above the largest visible score of the pair, is chosen for the first pair of the
// piece, for a score above the reference, and after a pair of which no p was as large as kHigh. (A pair
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
  bool high = false;                                            // some p of the pair before was
};

// Quantises the next pair of the piece. `scores` of `tokens` tokens are in log2, -infinity where
// hidden. Gives the weights p relative to 2^(the value returned) / 448: the highest reference among its
// parts, -infinity if no score is visible. A NaN gives a NaN and counts as no score.
double quantise_hopper_pair(const double* scores, int tokens, HopperRow& row, double* p);

}  // namespace mla::reference

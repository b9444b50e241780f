// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/hopper_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/hopper/quantisation.h"
#include "tests/reference/number_formats.h"

namespace mla::reference {

namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

// Largest of the scores below `below`; a NaN is none.
double maximum(const double* scores, int tokens, double below) {
  double most = kNegInf;
  for (int i = 0; i < tokens; ++i) {
    if (scores[i] < below && scores[i] > most) most = scores[i];
  }
  return most;
}

double quantised(double score, double reference) {
  if (std::isnan(score)) return score;
  if (score == kNegInf || reference == kNegInf) return 0.0;
  return e4m3_table()[to_e4m3(std::exp2(score - reference + double{hopper::kLog2PMax}))];
}

void choose_reference(double most, HopperRow& row) {
  row.reference = std::max(most + double{hopper::kMargin}, row.top - double{hopper::kDepth});
  row.top = std::max(row.top, row.reference);
}

}  // namespace

double quantise_hopper_pair(const double* scores, int tokens, HopperRow& row, double* p) {
  const double most = maximum(scores, tokens, std::numeric_limits<double>::infinity());
  double threshold = kNegInf;
  // The first pair of the piece has nothing before it that was high.
  if ((most > row.reference || !row.high) && most > kNegInf) {
    if (most > row.highest + double{hopper::kFall}) threshold = most - double{hopper::kSpread};
    row.highest = std::max(row.highest, most);
    choose_reference(most, row);
  }
  const double first = row.reference;
  row.high = false;
  for (int i = 0; i < tokens; ++i) {
    p[i] = scores[i] < threshold ? 0.0 : quantised(scores[i], first);
    row.high |= p[i] >= double{hopper::kHigh};
  }
  const double rest = maximum(scores, tokens, threshold);
  if (rest > kNegInf) {
    choose_reference(rest, row);
    const double weight = std::exp2(row.reference - first);
    for (int i = 0; i < tokens; ++i) {
      if (scores[i] < threshold) p[i] = weight * quantised(scores[i], row.reference);
    }
  }
  return first;
}

}  // namespace mla::reference

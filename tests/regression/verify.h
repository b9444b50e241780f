// SPDX-License-Identifier: Apache-2.0
//
// Compares the outputs of a launch with the references.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/regression/decode_case.h"
#include "tests/regression/decode_runner.h"
#include "tests/regression/schedule_model.h"

namespace mla::test {

// Bounds of an e4m3 kernel. "long": query tokens that see at least 1024 tokens.
inline constexpr double kMaxExactShort = 3e-2;  // relative L2 error against exact attention
inline constexpr double kMaxExactLong = 2e-2;
// The Hopper family keeps a reference for many tiles, so that the largest weights are rounded, too,
// which the cluster family has exactly.
inline constexpr double kMaxExactLongHopper = 2.2e-2;
inline constexpr double kMaxExactFlat = 6.25e-2;  // DecodeCase::flat: half a step of e4m3, of every weight
inline constexpr double kMaxExactRow = 8e-2;      // of any single row
inline constexpr double kMaxModel = 5e-3;         // against the model of the quantisation
// A weight on the border between two e4m3 values may fall to either side, for the last bit of its
// score; in a row that a few tokens rule, that is up to half a step of e4m3. Few rows may be so.
inline constexpr double kMaxModelRow = 1.5e-2;
inline constexpr double kMaxModelBorderRow = 6.25e-2;
inline constexpr int64_t kRowsPerBorderRow = 1000;  // one such row is allowed, and one more for so many
inline constexpr double kMaxLse = 1e-3;             // absolute, against exact attention
inline constexpr double kMaxLseRelative = 1e-6;     // of large ones: what a float can hold
// Where accumulators of mma.sync on e4m3 keep 13 bits or so (on the emulated driver with
// MLA_EMU_MMA_ACCUMULATOR=narrow), a score has an error of 2^-13 of the largest of the
// products that are summed in the tensor core: more weights fall to the other side of a border, and lse has
// the error of the largest score. The bounds against exact attention are the same.
inline constexpr double kMaxModelNarrow = 1e-2;
inline constexpr int64_t kRowsPerBorderRowNarrow = 64;
inline constexpr double kMaxLseNarrow = 2e-2;
inline constexpr double kMaxLseRelativeNarrow = 5e-4;
// wgmma on e4m3 keeps 13 bits of a sum on the way. The model has that for the scores, not for the products
// of P (5.1e-3 on an H200, once in 239 cases). The exact lse is further away where few tokens have the
// weight: absolute for scores of N(0, 1), more as scores are larger. (docs/accuracy.md)
inline constexpr double kMaxModelWgmma = 6e-3;
inline constexpr double kMaxLseWgmma = 6e-3;
inline constexpr double kMaxLseWgmmaRelative = 2.5e-4;  // added
// Bounds of a bf16 kernel, against exact attention.
inline constexpr double kMaxBf16 = 5e-3;
inline constexpr double kMaxBf16Row = 1.5e-2;
inline constexpr int64_t kLongTokens = 1024;

// Worst errors seen; negative: not measured.
struct Errors {
  double exact_short = -1, exact_long = -1, exact_flat = -1, exact_row = -1;
  double model = -1, model_row = -1;
  double lse = -1, model_lse = -1;
  void merge(const Errors& other);
  std::string text() const;
};

struct Verdict {
  Errors errors;
  std::vector<std::string> faults;  // what exceeds a bound; empty: the outputs are right
  int64_t rows_compared = 0;
};

struct VerifyOptions {
  mla_family family = MLA_FAMILY_CLUSTER;
  mla_mma mma = MLA_MMA_PLAIN;
  ScheduleRule rule = {128, 64, 2, 4, 8};  // of the kernel
  int workers = 1;                         // of the launch
  bool narrow = false;                     // accumulators of mma.sync
  double budget = 2e10;  // multiply-adds the references may cost; heads are sampled beyond it
  uint64_t seed = 0;     // of the sample
};

// NaN where the reference has it, and nowhere else: such rows are compared no further.
Verdict verify(const DecodeData& data, const Outputs& outputs, const VerifyOptions& options);

}  // namespace mla::test

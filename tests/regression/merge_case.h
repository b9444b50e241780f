// SPDX-License-Identifier: Apache-2.0
//
// Merge kernels against float64: random partial results, some of them empty, some NaN.
#pragma once

#include <string>
#include <vector>

#include "tests/regression/cuda_driver.h"
#include "tests/regression/decode_runner.h"
#include "tests/regression/loader_api.h"

namespace mla::test {

struct MergeCase {
  const char* name;
  int shards;
  int tokens;
  int heads;
  double spread = 3;         // deviation of the shards' lse, which are N(0, spread)
  int empty_percent = 0;     // of (shard, token, head): lse = -inf, output NaN
  int poisoned_percent = 0;  // lse and output NaN
  bool strided = false;
  bool want_lse = true;
  bool use_pdl = false;
  int max_sms = 0;
};

std::vector<MergeCase> merge_cases();

inline constexpr double kMaxMerge = 3e-3;     // relative L2 error of a row: the rounding of out to bf16
inline constexpr double kMaxMergeLse = 1e-5;  // absolute, or of a large one

// Launches twice. What is wrong with the results, a sentence each; *error is the worst relative error
// of a row, *lse_error that of lse. Throws DriverError or LoaderError.
std::vector<std::string> run_merge(const Driver& driver, const LoaderApi& api, const PreparedKernel& kernel,
                                   const MergeCase& c, uint64_t seed, double* error, double* lse_error);

}  // namespace mla::test

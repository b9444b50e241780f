// SPDX-License-Identifier: Apache-2.0
//
// Outputs of a run on one device, kept as a sample, to compare a run on another device with: the same
// kernel on a GPU and on the emulated driver must agree but for the order of accumulation.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/regression/decode_runner.h"

namespace mla::test {

// Bounds of the comparison. Scores that differ in their last bit move a weight across the border of
// two e4m3 values now and then, so equality is not to be had.
inline constexpr double kMaxRecordedError = 3e-3;  // relative L2 error over the sample of a case
inline constexpr double kMaxRecordedLse = 1e-4;    // absolute

struct Sample {
  std::vector<float> out;  // up to 16 rows, every 16th column
  std::vector<float> lse;  // of the same rows
};

Sample sample_outputs(const Outputs& outputs);

// "" or how `got` differs; *error receives the relative L2 error.
std::string compare_samples(const Sample& got, const Sample& recorded, double* error);

using Samples = std::map<std::string, Sample>;  // by the name of the test

// A text file: a line a case, its values as the hexadecimal bits of floats. Empty string on success.
std::string write_samples(const std::string& path, const std::string& device, const Samples& samples);
std::string read_samples(const std::string& path, std::string* device, Samples* samples);

}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
//
// The shapes that every kernel of a bundle is tested on.
#pragma once

#include <string>
#include <vector>

#include "tests/regression/decode_case.h"

namespace mla::test {

// How much of the list runs: on the emulated driver, in a minute on a GPU, everything.
// (emulator-full: kEmulator, with all deep cases for all kernels.)
enum Grid : unsigned { kEmulator = 1, kQuick = 2, kFull = 4 };

struct NamedCase {
  std::string name;
  unsigned grids;  // Grid bits
  DecodeCase test;
  bool every_page_size = false;  // runs with every page size of the kernel; else with its own
  bool deep = false;             // one of many alike: on the emulated driver every kernel takes its share
};

// Whether a kernel takes a deep case on the emulated driver: one in kDeepShare, by a hash of the two names,
// so that the kernels together take most of them, and the same ones every time.
inline constexpr unsigned kDeepShare = 2;
bool takes_deep_case(const std::string& kernel, const std::string& name);

std::vector<NamedCase> all_cases();

// Why a kernel cannot serve a case ("" if it can): page size, features.
struct KernelLimits {
  int page_size_multiple = 0;
  int page_size_max = 0;
  unsigned features = 0;  // MLA_FEATURE_* bits
};
unsigned needed_features(const DecodeCase& c);  // MLA_FEATURE_* bits
std::string why_not(const DecodeCase& c, const KernelLimits& kernel);

}  // namespace mla::test

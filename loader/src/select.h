// SPDX-License-Identifier: Apache-2.0
//
// Which kernel of a bundle serves a compute capability and a problem. Host only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loader/include/mla_loader.h"
#include "loader/src/error.h"
#include "manifest/manifest.h"

namespace mla::loader {

// Limits of a problem, whatever the bundle.
inline constexpr int32_t kMaxHeads = 128;
inline constexpr int32_t kMaxQLen = 64;

// How well a cubin fits a compute capability: lower is better. The rule is NVIDIA's: "sm_XYa" runs
// on exactly X.Y, "sm_XYf" on the same family from X.Y on, "sm_XY" on the same major from X.Y on.
inline constexpr int kRunsNot = -1;
int target_rank(uint32_t sm, const std::string& suffix, int32_t cc_major, int32_t cc_minor);
// "sm_120a, which runs on compute capability 12.0 alone"
std::string target_reach(const manifest::Target& target);

// Why the loader cannot launch a kernel, "" if it can: a family, type or layout that it does not
// know. `params_version` is that of the bundle.
std::string unusable_reason(const manifest::Kernel& kernel);

// Checks the fields of a problem. Errors name the field ("problem.heads").
Error check_problem(const mla_problem& problem);
// What check_problem leaves out: that a compute capability is given.
Error check_compute_capability(const mla_problem& problem);

class Selector {
 public:
  // Both must outlive the selector; `unusable` holds unusable_reason of every kernel.
  Selector() = default;
  Selector(const std::vector<manifest::Kernel>& kernels, const std::vector<std::string>& unusable);

  // The best kernel of a checked problem; false if there is none. Allocates nothing.
  bool best(const mla_problem& problem, uint32_t* index) const;
  // All kernels that serve a checked problem, best first.
  std::vector<uint32_t> ranked(const mla_problem& problem) const;
  // A line per kernel: first the ranked ones, then the others with all reasons against them.
  std::string explain(const mla_problem& problem) const;

 private:
  // What one kernel serves, packed for a fast scan.
  struct Entry {
    uint64_t config;      // dtypes, dims, family, form of the MMA
    uint32_t features;    // MLA_FEATURE_*
    uint32_t page_sizes;  // bit n: pages of 2^n tokens
    int32_t rows;
    uint32_t index;
  };
  // Kernels of one target: entries_[begin, end), best first whatever the problem.
  struct Group {
    uint32_t sm;
    std::string suffix;
    uint32_t begin;
    uint32_t end;
  };
  struct Wanted {
    uint64_t config;
    uint64_t mask;  // bits of config that matter
    uint32_t features;
    uint32_t page_size;
    int32_t heads;
  };
  static Wanted wanted(const mla_problem& problem);
  static bool serves(const Entry& entry, const Wanted& wanted);
  std::string reasons_against(uint32_t index, const mla_problem& problem) const;

  const std::vector<manifest::Kernel>* kernels_ = nullptr;
  const std::vector<std::string>* unusable_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<Group> groups_;
};

// Words for messages.
std::string dtype_name(int32_t dtype);
std::string family_name(int32_t family);
std::string mma_name(int32_t mma);
std::string features_name(uint32_t features);  // "LSE, PDL"

}  // namespace mla::loader

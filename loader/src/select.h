// SPDX-License-Identifier: Apache-2.0
//
// Which kernel of a bundle serves a compute capability and a problem. Host only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/mla_schedule.h"
#include "loader/include/mla_loader.h"
#include "loader/src/error.h"
#include "manifest/manifest.h"

namespace mla::loader {

// How well a cubin fits a compute capability: lower is better. The rule is NVIDIA's: "sm_XYa" runs
// on exactly X.Y, "sm_XYf" on the same family from X.Y on, "sm_XY" on the same major from X.Y on.
inline constexpr int kRunsNot = -1;
int target_rank(uint32_t sm, const std::string& suffix, int32_t cc_major, int32_t cc_minor);
// "sm_120a, which runs on compute capability 12.0 alone"
std::string target_reach(const manifest::Target& target);

// Why the loader cannot launch a kernel, "" if it can: a kind, requirement, word or parameter struct
// that it does not know.
std::string unusable_reason(const manifest::Kernel& kernel);

// Checks the fields of a problem and fills in the defaults of those that are 0. Errors name the field
// ("problem.heads").
Error check_problem(mla_problem* problem);
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
    uint64_t words;  // kind, dtypes, family, ...: four bits each
    uint64_t dims;
    uint32_t features;  // MLA_FEATURE_*
    uint32_t page_size_multiple;
    uint32_t page_size_max;
    uint32_t rows;
    uint32_t tile_cost;
    ScheduleRule rule;
    uint32_t cluster_size;
    uint32_t max_workers;
    uint32_t folds;  // rows are (query token, head) pairs, not heads alone
    uint32_t alike;  // entries behind this one that differ in cost, priority and id alone
    uint32_t order;  // among all entries, by priority and id: the lower wins
    uint32_t index;
  };
  static Entry make_entry(const manifest::Kernel& kernel);
  // Kernels of one target: entries_[begin, end). Those that differ in cost, priority and id alone lie
  // together, the best first, so that a scan looks at one of them.
  struct Group {
    uint32_t sm;
    std::string suffix;
    uint32_t begin;
    uint32_t end;
  };
  struct Wanted {
    uint64_t words;
    uint64_t mask;  // bits of words that matter
    uint64_t dims;
    uint32_t features;
    uint32_t page_size;
    uint32_t heads;
    uint32_t q_len;
    uint64_t batch;
    uint32_t sm_count;  // 0: batch, lengths or this are not known
    int64_t seq_len;
  };
  static Wanted wanted(const mla_problem& problem);
  static bool serves(const Entry& entry, const Wanted& wanted);
  static uint64_t row_tiles(const Entry& entry, const Wanted& wanted);
  static uint64_t cost(const Entry& entry, const Wanted& wanted);
  std::string reasons_against(uint32_t index, const mla_problem& problem) const;

  const std::vector<manifest::Kernel>* kernels_ = nullptr;
  const std::vector<std::string>* unusable_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<Group> groups_;
};

}  // namespace mla::loader

// SPDX-License-Identifier: Apache-2.0
//
// Where a launch splits the work on its query tokens: the host's run of the kernels' own schedule
// (kernels/common/mla_schedule.h).
#pragma once

#include <cstdint>
#include <vector>

namespace mla::test {

struct ScheduleInput {
  std::vector<int32_t> seq_lens;
  int q_len = 1;
  int capacity = 0;    // tokens that a row of the page table can hold
  int workers = 1;     // workers of the launch
  int max_splits = 0;  // 0: no cap
};

// Tile offsets of the splits of every query token, in order of request and token: 0 = first < ... <
// last = tiles. A query token that sees nothing has {0, 0}.
std::vector<std::vector<int>> split_offsets(const ScheduleInput& input);

}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
//
// Where a launch splits the work on its items: the host's run of the kernels' own schedule
// (kernels/common/mla_schedule.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/mla_schedule.h"

namespace mla::test {

struct ScheduleInput {
  ScheduleRule rule = {128, 64, 2, 4, 8};  // of the kernel
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> q_offsets;  // empty: q_len of every request
  DecodeParams params = {};        // its numbers alone: q_len, heads, page table, mask, max_splits
  int workers = 1;                 // of the launch
};

class ScheduleModel {
 public:
  explicit ScheduleModel(const ScheduleInput& input);

  // Tile offsets of the splits of an item: 0 = first < ... < last = tiles; {0, 0} if it reads nothing.
  struct Item {
    int request;
    int row_tile;
    std::vector<int> offsets;
  };
  const std::vector<Item>& items() const { return items_; }
  // Of the item that a head of a query token belongs to.
  const std::vector<int>& offsets(int request, int token, int head) const;

 private:
  ScheduleRule rule_;
  int heads_;
  std::vector<Item> items_;
  std::vector<size_t> first_item_;  // of every request
};

}  // namespace mla::test

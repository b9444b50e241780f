// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/schedule_model.h"

#include "kernels/common/mla_schedule.h"

namespace mla::test {

std::vector<std::vector<int>> split_offsets(const ScheduleInput& input) {
  int length = 0;
  for (const int32_t seq_len : input.seq_lens) {
    for (int t = 0; t < input.q_len; ++t) {
      length += item_units(visible_tokens(seq_len, input.capacity, input.q_len, t));
    }
  }
  const int workers = active_workers(length, input.workers);

  std::vector<std::vector<int>> result;
  int start = 0;
  int next = 0;  // the first boundary after `start`
  for (const int32_t seq_len : input.seq_lens) {
    for (int t = 0; t < input.q_len; ++t) {
      const int visible = visible_tokens(seq_len, input.capacity, input.q_len, t);
      if (visible == 0) {
        result.push_back({0, 0});
        start += item_units(visible);
        continue;
      }
      const int tiles = item_tiles(visible);
      const int granularity = split_granularity(tiles, input.max_splits);
      std::vector<int> offsets = {0};
      while (next < workers && share_begin(next, length, workers) <= start) ++next;
      for (int c = next; c < workers && share_begin(c, length, workers) < start + tiles; ++c) {
        const int cut = cut_tile(share_begin(c, length, workers) - start, tiles, granularity);
        if (cut > offsets.back() && cut < tiles) offsets.push_back(cut);
      }
      offsets.push_back(tiles);
      result.push_back(std::move(offsets));
      start += item_units(visible);
    }
  }
  return result;
}

}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/schedule_model.h"

#include <algorithm>

namespace mla::test {

ScheduleModel::ScheduleModel(const ScheduleInput& input) : rule_(input.rule), heads_(input.params.heads) {
  const DecodeParams& params = input.params;
  const int32_t capacity = table_capacity(params);
  const int batch = static_cast<int>(input.seq_lens.size());
  std::vector<Request> requests;
  int length = 0, least = 0x7fffffff, most = 0;
  for (int b = 0; b < batch; ++b) {
    requests.push_back(input.q_offsets.empty() ? Request{input.seq_lens[b], b * params.q_len, params.q_len}
                                               : ragged_request(params, b, input.seq_lens[b],
                                                                input.q_offsets[b], input.q_offsets[b + 1]));
    const int units = request_units(rule_, params, requests.back(), capacity);
    length += units;
    least = std::min(least, units);
    most = std::max(most, units);
  }
  const int each = least == most && input.q_offsets.empty()
                       ? units_of_each(rule_, params, requests.front(), least, capacity)
                       : 0;
  const Line line = cut_line(rule_, length, each, input.workers);
  length = line.length;
  const int workers = line.workers;

  int start = 0;
  int next = 0;  // the first boundary after `start`
  for (int b = 0; b < batch; ++b) {
    first_item_.push_back(items_.size());
    for (int tile = 0; tile < row_tiles(rule_, requests[b].count, params.heads); ++tile) {
      const int tiles = item_tiles(rule_, item_visible(rule_, params, requests[b], tile), capacity);
      const int granularity = split_granularity(tiles, params.max_splits);
      std::vector<int> offsets = {0};
      while (next < workers && share_begin(next, length, workers) <= start) ++next;
      for (int c = next; c < workers && share_begin(c, length, workers) < start + tiles; ++c) {
        const int cut = cut_tile(share_begin(c, length, workers) - start, tiles, granularity);
        if (cut > offsets.back() && cut < tiles) offsets.push_back(cut);
      }
      offsets.push_back(tiles);
      items_.push_back({b, tile, std::move(offsets)});
      start += item_units(rule_, tiles);
    }
  }
}

const std::vector<int>& ScheduleModel::offsets(int request, int token, int head) const {
  return items_[first_item_[request] + (token * heads_ + head) / rule_.rows].offsets;
}

}  // namespace mla::test

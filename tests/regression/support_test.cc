// SPDX-License-Identifier: Apache-2.0
//
// The suite's own parts, without a driver: the host copy of the schedule, the data, and that the
// comparison finds what is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "kernels/common/mla_schedule.h"
#include "loader/include/mla_loader.h"
#include "tests/reference/number_formats.h"
#include "tests/regression/cases.h"
#include "tests/regression/schedule_model.h"
#include "tests/regression/verify.h"

namespace mla::test {
namespace {

using reference::Format;
using reference::kDepthV;

ScheduleInput schedule_of(std::vector<int32_t> seq_lens, int workers) {
  ScheduleInput input;
  input.seq_lens = std::move(seq_lens);
  input.params.q_len = 1;
  input.params.heads = 128;
  input.params.page_size = 64;
  input.params.max_pages_per_seq = 1000;
  input.params.causal = 1;
  input.workers = workers;
  return input;
}

std::vector<std::vector<int>> all_offsets(const ScheduleInput& input) {
  const ScheduleModel model(input);
  std::vector<std::vector<int>> offsets;
  for (const auto& item : model.items()) offsets.push_back(item.offsets);
  return offsets;
}

using Offsets = std::vector<std::vector<int>>;

TEST(ScheduleModel, OneItemByHand) {
  // 10 tiles + 2 units of overhead = 12 units: three workers of 4 units (at least 4 each).
  ScheduleInput input = schedule_of({640}, 33);
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 4, 8, 10}}));
  input.params.max_splits = 2;  // splits begin at multiples of 5 tiles
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 5, 10}}));
  input.params.max_splits = 1;
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 10}}));
  for (const int32_t cap : {-1, 10, 0x7fffffff, 0x7ffffff8}) {
    input.params.max_splits = cap;
    EXPECT_EQ(all_offsets(input), (Offsets{{0, 4, 8, 10}})) << cap;
  }
}

TEST(ScheduleModel, NothingVisible) {
  ScheduleInput input = schedule_of({0, 1, -2147483647 - 1}, 4);
  input.params.q_len = 2;
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 0}, {0, 0}, {0, 0}, {0, 1}, {0, 0}, {0, 0}}));
}

TEST(ScheduleModel, RowTiles) {
  // 16 heads of 8 query tokens are one row tile, which reads what the last of them sees; 48 heads of
  // 5 are two, of which the first ends with query token 2.
  ScheduleInput input = schedule_of({130}, 1);
  input.params.q_len = 8;
  input.params.heads = 16;
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 3}}));
  input.params.q_len = 5;
  input.params.heads = 48;
  input.seq_lens = {130};
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 2}, {0, 3}}));
  EXPECT_EQ(ScheduleModel(input).offsets(0, 2, 31), (std::vector<int>{0, 2}));
  EXPECT_EQ(ScheduleModel(input).offsets(0, 2, 32), (std::vector<int>{0, 3}));
  input.params.causal = 0;
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 3}, {0, 3}}));
  // A request without query tokens has no item; what lies beyond the page table is not read.
  input.seq_lens = {130, 500, 7};
  input.q_offsets = {0, 1, 1, 2};
  input.params.max_pages_per_seq = 1;
  EXPECT_EQ(all_offsets(input), (Offsets{{0, 1}, {0, 1}}));
}

TEST(ScheduleModel, QueryOffsetsThatCannotBeRightAreBounded) {
  DecodeParams params{};
  params.q_len = 4;
  const auto request = [&](int b, int32_t begin, int32_t end) {
    const Request r = ragged_request(params, b, 100, begin, end);
    return std::pair(r.first_query, r.count);
  };
  EXPECT_EQ(request(2, 5, 7), std::pair(5, 2));
  EXPECT_EQ(request(2, -2147483647 - 1, 2147483647), std::pair(0, 4));
  EXPECT_EQ(request(2, 2147483647, -2147483647 - 1), std::pair(8, 0));
  EXPECT_EQ(request(2, 9, 9), std::pair(8, 1));
  EXPECT_EQ(request(0, 3, 4), std::pair(0, 4));
}

// Every tile of every item belongs to one worker, each takes a contiguous range, and shares are
// balanced: the walk over units, independent of ScheduleModel.
TEST(ScheduleModel, AgreesWithAWalkOverTheUnits) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    ScheduleInput input = schedule_of({}, 1 + random() % 40);
    input.params.q_len = 1 + random() % 9;
    input.params.heads = std::vector<int>{128, 16, 5, 48}[random() % 4];
    input.params.max_pages_per_seq = 78;
    input.params.max_splits = trial % 3 == 0 ? 1 + random() % 5 : 0;
    for (int i = 1 + random() % 6; i > 0; --i) input.seq_lens.push_back(random() % 6000 * (random() % 4 > 0));
    const ScheduleModel model(input);
    const ScheduleRule& rule = input.rule;

    std::vector<int> tiles;  // of every item
    int length = 0;
    for (const int len : input.seq_lens) {
      const int rows = input.params.q_len * input.params.heads;
      for (int first = 0; first < rows; first += 128) {
        const int last_token = (std::min(first + 128, rows) - 1) / input.params.heads;
        const int visible = std::clamp(len - input.params.q_len + 1 + last_token, 0, 78 * 64);
        tiles.push_back((visible + 63) / 64);
        length += tiles.back() > 0 ? tiles.back() + 2 : 1;
      }
    }
    std::vector<int> owner;  // of every unit
    const bool alike = std::all_of(tiles.begin(), tiles.end(), [&](int n) { return n == tiles[0]; });
    const Line line = cut_line(rule, length, alike ? item_units(rule, tiles[0]) : 0, input.workers);
    length = line.length;
    const int workers = line.workers;
    for (int c = 0; c < workers; ++c) owner.resize(share_begin(c + 1, length, workers), c);
    ASSERT_EQ(static_cast<int>(owner.size()), length);
    ASSERT_EQ(model.items().size(), tiles.size());

    int start = 0;
    for (size_t item = 0; item < tiles.size(); ++item) {
      const int granularity = split_granularity(tiles[item], input.params.max_splits);
      std::set<int> want = {0, tiles[item]};
      for (int tile = 1; tile < tiles[item]; ++tile) {
        if (owner[start + tile] != owner[start + tile - 1]) want.insert(tile / granularity * granularity);
      }
      std::vector<int> offsets(want.begin(), want.end());
      if (tiles[item] == 0) offsets = {0, 0};
      EXPECT_EQ(model.items()[item].offsets, offsets);
      if (input.params.max_splits > 0) {
        EXPECT_LE(static_cast<int>(offsets.size()) - 1, input.params.max_splits);
      }
      start += tiles[item] > 0 ? tiles[item] + 2 : 1;
    }
  }
}

TEST(Data, DistributionAndFormats) {
  for (const Format format : {Format::kE4M3, Format::kBF16}) {
    for (const double sigma : {1.0, 0.1}) {
      const int64_t count = 200000;
      std::vector<uint8_t> bytes(count * 2);
      fill_normal(bytes.data(), count, format, sigma, 9);
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double value =
            format == Format::kE4M3
                ? reference::e4m3_to_float(bytes[i])
                : reference::bf16_to_float(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
        sum += value;
        squares += value * value;
      }
      EXPECT_NEAR(sum / count, 0.0, 0.01 * sigma);
      EXPECT_NEAR(std::sqrt(squares / count), sigma, 0.01 * sigma);
    }
  }
}

TEST(Data, WhatMustNotBeReadIsPoisoned) {
  const DecodeCase c =
      DecodeCase().seq_lens({70, 0, 16}).page_size(16).heads(2).pad_table(3).bad_pages({{0, 1, -5}});
  const Layout layout = make_layout(c, 128, Format::kE4M3, Format::kE4M3);
  const DecodeData data = make_data(c, layout, Format::kE4M3, Format::kE4M3, 0, 1);
  EXPECT_EQ(layout.heads, 2);
  EXPECT_EQ(layout.max_pages_per_seq, 7);
  EXPECT_EQ(layout.page_table_stride, 10);
  EXPECT_GT(layout.pages, 6);
  EXPECT_EQ(data.page_ids.size(), 6u);
  EXPECT_EQ(std::set<int32_t>(data.page_ids.begin(), data.page_ids.end()).size(), 6u);
  EXPECT_TRUE(std::count(data.page_ids.begin(), data.page_ids.end(), 0));
  EXPECT_TRUE(std::count(data.page_ids.begin(), data.page_ids.end(), layout.pages - 1));
  EXPECT_EQ(data.device_table[1], -5);
  EXPECT_EQ(data.host_table[1], -1);
  // Request 0 uses 5 pages; the rest of its row, and the row of request 1, are absurd.
  for (int i = 0; i < 20; ++i) {
    const bool used = i < 5 && i != 1;
    EXPECT_EQ(data.device_table[i] >= 0 && data.device_table[i] < layout.pages, used) << i;
  }
  // Six tokens of the fifth page are numbers, the other ten NaN.
  const uint8_t* page = &data.keys[data.host_table[4] * 16 * 576];
  for (int i = 0; i < 16 * 576; ++i) {
    ASSERT_EQ(std::isnan(reference::e4m3_to_float(page[i])), i >= 6 * 576) << i;
  }
}

TEST(Data, FirstAndLastPageAreUsedOnlyOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const DecodeCase c = DecodeCase().seq_lens({5, 130, 64});
    const Layout layout = make_layout(c, 16, Format::kE4M3, Format::kE4M3);
    const DecodeData data = make_data(c, layout, Format::kE4M3, Format::kE4M3, 0, seed);
    std::set<int32_t> ids(data.page_ids.begin(), data.page_ids.end());
    EXPECT_EQ(ids.size(), data.page_ids.size());
    EXPECT_EQ(*ids.begin(), 0);
    EXPECT_EQ(*ids.rbegin(), layout.pages - 1);
  }
}

// Outputs as a faultless kernel would give them, for a case with everything in it.
class Verify : public testing::Test {
 protected:
  Verify()
      : c_(DecodeCase().seq_lens({0, 1, 65, 1500}).q_len(2).heads(12).bad_pages({{3, 4, -1}})),
        layout_(make_layout(c_, 128, Format::kE4M3, Format::kE4M3)),
        data_(make_data(c_, layout_, Format::kE4M3, Format::kE4M3, 0, 3)) {
    options_.workers = 5;
    ScheduleInput schedule = schedule_of(data_.seq_lens, 5);
    schedule.params.q_len = 2;
    schedule.params.heads = 12;
    schedule.params.max_pages_per_seq = layout_.max_pages_per_seq;
    const ScheduleModel splits(schedule);
    reference::ReferenceOptions options;
    options.split_offsets = [&](reference::QueryToken t, int head) {
      return splits.offsets(t.request, t.token, head);
    };
    const auto want = decode_reference(data_.problem(), options);
    for (const double value : want.model_out) {
      outputs_.out.push_back(reference::float_to_bf16(static_cast<float>(value)));
    }
    for (const double value : want.lse) outputs_.lse.push_back(static_cast<float>(value));
    outputs_.bad_pages = 2;
  }

  std::vector<std::string> faults() { return verify(data_, outputs_, options_).faults; }
  // The faults have one that contains `text`.
  bool finds(const std::string& text) {
    for (const std::string& fault : faults()) {
      if (fault.find(text) != std::string::npos) return true;
    }
    return false;
  }

  DecodeCase c_;
  Layout layout_;
  DecodeData data_;
  VerifyOptions options_;
  Outputs outputs_;
};

TEST_F(Verify, AcceptsTheRightOutputs) {
  const Verdict verdict = verify(data_, outputs_, options_);
  EXPECT_EQ(verdict.faults, std::vector<std::string>{});
  EXPECT_EQ(verdict.rows_compared, 96);
  EXPECT_GT(verdict.errors.exact_long, 1e-3);
  EXPECT_LT(verdict.errors.model, 3e-3);
}

TEST_F(Verify, FindsOneWrongRow) {
  const size_t row = 5 * 12 + 7;  // request 2, query token 1, head 7
  for (int d = 0; d < kDepthV; ++d) outputs_.out[row * kDepthV + d] ^= 0x8000;
  EXPECT_TRUE(finds("request 2, query token 1, head 7 (65 tokens visible): relative error 2 against exact"));
}

TEST_F(Verify, FindsAnErrorOfOneRow) {
  const size_t row = 7 * 12 + 11;
  for (int d = 0; d < kDepthV; ++d) {
    uint16_t& code = outputs_.out[row * kDepthV + d];
    code = reference::float_to_bf16(reference::bf16_to_float(code) * 1.07f);
  }
  EXPECT_TRUE(finds("request 3, query token 1, head 11 (1500 tokens visible): relative error 0.07"));
  EXPECT_TRUE(finds("against the model of the quantisation, at most 0.0625"));
}

TEST_F(Verify, FindsASmallErrorOfTwoRows) {
  // One row with a weight that fell to the other side of a border would pass.
  for (const size_t row : {size_t{5 * 12 + 3}, size_t{7 * 12 + 11}}) {
    for (int d = 0; d < kDepthV; ++d) {
      uint16_t& code = outputs_.out[row * kDepthV + d];
      code = reference::float_to_bf16(reference::bf16_to_float(code) * 1.03f);
    }
  }
  EXPECT_TRUE(finds("2 of 96 rows are off by more than 0.015 of the model of the quantisation, at most 1"));
}

TEST_F(Verify, FindsADriftOfAllRows) {
  for (uint16_t& code : outputs_.out)
    code = reference::float_to_bf16(reference::bf16_to_float(code) * 1.008f);
  EXPECT_TRUE(finds("relative L2 error against the model of the quantisation is 0.00"));
}

TEST_F(Verify, FindsOtherSplits) {
  // The model must know the splits: with those of another number of workers the error is that of
  // the quantisation.
  const double right = verify(data_, outputs_, options_).errors.model;
  options_.workers = 2;
  EXPECT_GT(verify(data_, outputs_, options_).errors.model, 2 * right);
}

TEST_F(Verify, FindsNaNAndRowsThatSeeNothing) {
  outputs_.out[3] = 0x7fff;
  EXPECT_TRUE(finds("out has nan in row 0, column 3"));
  outputs_.out[3] = 0x3f80;
  EXPECT_TRUE(finds("request 0, query token 0, head 0 (0 tokens visible): out must be 0 but is 1.0"));
  outputs_.out[3] = 0;
  outputs_.lse[2] = 0.0f;
  EXPECT_TRUE(finds("request 0, query token 0, head 2 (0 tokens visible): lse must be -inf but is 0.0"));
  outputs_.lse[2] = std::nanf("");
  EXPECT_TRUE(finds("lse is NaN in row 2"));
}

TEST_F(Verify, FindsLseAndBadPageCount) {
  outputs_.lse[95] += 0.002f;
  EXPECT_TRUE(
      finds("request 3, query token 1, head 11 (1500 tokens visible): lse is off by 0.002, at most 0.001"));
  outputs_.bad_pages = 0;
  EXPECT_TRUE(finds("the bad page counter is 0, expected more than 0"));
}

TEST_F(Verify, SamplesHeadsBeyondTheBudget) {
  options_.budget = 1;
  EXPECT_EQ(verify(data_, outputs_, options_).rows_compared, 8 * 4);
}

TEST(Cases, NamesAreUniqueAndEveryCaseFitsAFullKernel) {
  std::set<std::string> names;
  const KernelLimits full{16, 1 << 20, ~0u};
  for (const NamedCase& named : all_cases()) {
    EXPECT_TRUE(names.insert(named.name).second) << named.name;
    EXPECT_EQ(why_not(named.test, full), "") << named.name;
    EXPECT_TRUE(named.grids & kFull) << named.name;
    for (const BadPage& bad : named.test.bad) {
      EXPECT_LT(bad.page * named.test.page_tokens, named.test.local_len(named.test.steps[0][bad.request]))
          << named.name;
    }
  }
}

TEST(Cases, ReasonsWhyAKernelCannotServe) {
  const KernelLimits kernel{32, 64, 0};
  EXPECT_EQ(why_not(DecodeCase().no_lse().page_size(16), kernel),
            "page size 16, the kernel has multiples of 32 up to 64");
  EXPECT_EQ(why_not(DecodeCase().no_lse().page_size(96), kernel),
            "page size 96, the kernel has multiples of 32 up to 64");
  EXPECT_EQ(why_not(DecodeCase(), kernel), "the kernel has no lse");
  EXPECT_EQ(why_not(DecodeCase().no_lse(), kernel), "");
  EXPECT_EQ(why_not(DecodeCase().no_lse().pdl(), kernel), "the kernel has no pdl");
  EXPECT_EQ(why_not(DecodeCase().no_lse().separate_values(), kernel), "the kernel has no separate_values");
  EXPECT_EQ(why_not(DecodeCase().no_lse().strided(), kernel), "the kernel has no strides");
  EXPECT_EQ(why_not(DecodeCase().no_lse().q_counts({1}), kernel), "the kernel has no ragged_q");
  EXPECT_EQ(why_not(DecodeCase().no_lse().non_causal(), kernel), "the kernel has no non_causal");
  EXPECT_EQ(why_not(DecodeCase().no_lse().context_parallel(0, 2, 16), kernel),
            "the kernel has no context_parallel");
}

// On the emulated driver.
TEST(Cases, DeepOnesAreSpreadOverTheKernels) {
  const std::string kernels[] = {"hopper_e4m3_e4m3_bf16_r16_sm_90a", "hopper_e4m3_e4m3_bf16_r32_sm_90a",
                                 "hopper_e4m3_e4m3_bf16_r64_sm_90a", "hopper_e4m3_e4m3_bf16_r128_sm_90a"};
  int deep = 0, core = 0, taken_by_one = 0;
  int taken[4] = {};
  for (const NamedCase& named : all_cases()) {
    if (!(named.grids & kEmulator)) continue;
    deep += named.deep;
    core += !named.deep;
    if (!named.deep) continue;
    bool any = false;
    for (int i = 0; i < 4; ++i) {
      const bool takes = takes_deep_case(kernels[i], named.name);
      taken[i] += takes;
      any |= takes;
    }
    taken_by_one += any;
  }
  EXPECT_GT(core, 60);
  EXPECT_GT(deep, 60);
  EXPECT_GT(taken_by_one, deep * 8 / 10);
  for (const int count : taken) {
    EXPECT_GT(count, deep / 4);
    EXPECT_LT(count, deep * 3 / 4);
  }
}

// 128 equal sequences on 132 workers: four idle workers cost less than 128 merges.
TEST(Schedule, WholeItemsWhereTheyFillTheWorkersNearlyAsWell) {
  constexpr ScheduleRule rule{64, 64, 3, 4, 12};
  EXPECT_EQ(cut_line(rule, 128 * 131, 131, 132).workers, 128);
  EXPECT_EQ(cut_line(rule, 128 * 131, 131, 132).length, 128 * 131);
  EXPECT_EQ(cut_line(rule, 128 * 131, 131, 66).workers, 64);           // two each
  EXPECT_EQ(cut_line(rule, 129 * 131, 131, 66).workers, 65);           // the last one has one
  EXPECT_EQ(cut_line(rule, 129 * 131, 131, 66).length, 65 * 2 * 131);  // and a gap
  EXPECT_EQ(cut_line(rule, 100 * 131, 131, 132).workers, 132);         // 31 fewer units a share
  EXPECT_EQ(cut_line(rule, 128 * 131, 0, 132).workers, 132);           // not alike
  EXPECT_EQ(cut_line(rule, 131, 131, 132).workers, 32);                // one sequence is split
}

}  // namespace
}  // namespace mla::test

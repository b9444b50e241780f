// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/cases.h"

#include <cmath>

#include "kernels/common/mla_words.h"
#include "loader/include/mla_loader.h"

namespace mla::test {

std::vector<NamedCase> all_cases() {
  constexpr unsigned kAll = kEmulator | kQuick | kFull;
  constexpr unsigned kGpu = kQuick | kFull;
  using C = DecodeCase;
  const std::vector<int32_t> edges = {0, 1, 63, 64, 65, 300};
  std::vector<NamedCase> cases;
  bool deep = false;  // the cases added from here on are
  const auto add = [&](std::string name, unsigned grids, const DecodeCase& test,
                       bool every_page_size = false) {
    cases.push_back({std::move(name), grids, test, every_page_size, deep});
  };
  // Small: also on the emulated driver.
  add("ragged_edges", kAll, C().seq_lens(edges), true);
  add("splits", kAll, C().seq_lens({700}).page_size(32));
  add("splits_in_two_levels", kAll, C().seq_lens({2400}));
  add("splits_ragged", kAll, C().seq_lens({640, 3, 500, 0, 90}).page_size(16));
  add("splits_next_to_empty", kAll, C().seq_lens({0, 900, 0, 3}));
  add("max_splits_1", kAll, C().seq_lens({700, 70}).max_splits(1));
  add("max_splits_2", kAll, C().seq_lens({700, 70}).max_splits(2).page_size(128));
  add("max_sms", kAll, C().seq_lens({500, 30}).max_sms(9));
  add("q_len_2", kAll, C().seq_lens({0, 1, 2, 64, 65, 66, 130}).q_len(2).page_size(16));
  add("q_len_4_short", kAll, C().seq_lens({1, 2, 3, 4, 5}).q_len(4));
  add("q_len_8", kAll, C().seq_lens({3, 9, 200}).q_len(8).page_size(32));
  add("bad_pages", kAll,
      C().seq_lens({200, 90, 64, 33})
          .page_size(16)
          .bad_pages({{0, 0, -1},
                      {0, 5, kOnePastPool},
                      {0, 12, -2147483647 - 1},
                      {1, 2, 0x7fffffff},
                      {2, 0, -1},
                      {2, 1, -2},
                      {2, 2, -3},
                      {2, 3, kOnePastPool},
                      {3, 2, -1}}));
  add("bad_pages_q_len_2", kAll,
      C().seq_lens({129, 66}).q_len(2).bad_pages({{0, 1, -7}, {1, 0, kOnePastPool}}));
  add("bad_pages_uncounted", kAll, C().seq_lens({129}).bad_pages({{0, 1, -7}}).no_bad_page_counter());
  add("heads_1", kAll, C().seq_lens({70, 1}).heads(1));
  add("heads_8", kAll, C().seq_lens({70, 1}).heads(8));
  add("heads_16", kAll, C().seq_lens({70, 1}).heads(16));
  add("heads_32", kAll, C().seq_lens({70, 1}).heads(32));
  add("heads_64", kAll, C().seq_lens({70, 1}).heads(64));
  add("heads_17_q_len_2", kAll, C().seq_lens({70, 1}).heads(17).q_len(2));
  add("scales", kAll, C().seq_lens({150}).scales(0.37f, 2.5f));
  add("scale_pointers", kAll, C().seq_lens({150}).scales(1.75f, 0.2f).scale_pointers().flat_scores());
  add("small_values", kAll, C().seq_lens({150, 66}).small_values());
  add("steep_scores", kAll, C().seq_lens({150, 66}).softmax_scale(0.25f));
  add("separate_values", kAll, C().seq_lens({150, 40}).separate_values().page_size(32));
  add("strides", kAll, C().seq_lens({150, 40}).pad_tokens(64).pad_pages(1040).pad_table(5));
  add("strides_separate_values", kAll, C().seq_lens({150}).separate_values().pad_tokens(16).pad_pages(32));
  add("token_major", kAll, C().seq_lens({150, 40}).token_major().page_size(16));
  add("tight_page_table", kAll, C().seq_lens({128, 64}).tight_table());
  add("no_lse", kAll, C().seq_lens({150, 0}).no_lse());
  add("pdl", kAll, C().seq_lens({150, 0}).pdl().repeats(2));
  add("launch_again", kAll, C().seq_lens({300, 5}).then({0, 130}).then({64, 0}));
  add("graph_replay", kAll, C().seq_lens({300, 5}).then({0, 130}).then({0, 0}).then({1, 700}).graph());
  add("repeat", kAll, C().seq_lens({400, 100}).repeats(2));

  // Rows are (query token, head) pairs: 16 heads of 8 query tokens are one row tile.
  add("fold_16_heads_q_len_8", kAll, C().seq_lens({200, 9, 3, 0, 700}).heads(16).q_len(8).page_size(16));
  add("fold_48_heads_q_len_5", kAll, C().seq_lens({200, 66, 3}).heads(48).q_len(5).page_size(32));
  add("fold_5_heads_q_len_64", kAll, C().seq_lens({70, 300}).heads(5).q_len(64));
  add("ragged_q", kAll, C().seq_lens({300, 40, 70, 0, 129}).heads(16).q_len(4).q_counts({4, 0, 1, 2, 3}));
  add("ragged_q_128_heads", kAll, C().seq_lens({70, 129, 5}).q_len(3).q_counts({1, 3, 0}).page_size(16));
  add("ragged_q_nothing", kAll, C().seq_lens({70, 129}).q_len(2).q_counts({0, 0}));
  add("padded_batch", kAll,
      C().seq_lens({500, 0, 0, 1, 1}).heads(16).bad_pages({{3, 0, -1}, {4, 0, -1}}).page_size(16));
  add("non_causal", kAll, C().seq_lens({300, 2, 0, 66}).heads(16).q_len(4).non_causal());
  add("non_causal_128_heads", kAll, C().seq_lens({130, 1}).q_len(2).non_causal().page_size(16));
  deep = true;
  for (const int interleave : {1, 16, 100}) {
    for (const int rank : {0, 2}) {
      add("context_parallel_" + std::to_string(interleave) + "_rank_" + std::to_string(rank), kAll,
          C().seq_lens({1000, 301, 5, 0, 2})
              .heads(16)
              .q_len(5)
              .page_size(16)
              .context_parallel(rank, 3, interleave));
    }
  }
  deep = false;
  add("strided_rows", kAll, C().seq_lens({150, 40, 0}).heads(24).q_len(3).strided());
  add("strided_rows_ragged", kAll, C().seq_lens({150, 700}).heads(24).q_len(3).q_counts({1, 3}).strided());

  // Inputs that failed once.
  add("max_splits_huge", kAll, C().seq_lens({700}).heads(16).max_splits(0x7fffffff));
  add("max_splits_nearly_huge", kAll, C().seq_lens({700, 3000}).heads(16).max_splits(0x7fffffff - 40));
  for (const int q_len : {2, 8}) {
    add("negative_lengths_q_len_" + std::to_string(q_len), kAll,
        C().seq_lens({-2147483647 - 1, 10, -2147483647, -1}).heads(16).q_len(q_len).page_size(16));
  }
  add("beyond_the_table", kAll, C().seq_lens({130, 128}).q_len(2).short_table(1));
  add("beyond_the_table_in_a_tile", kAll,
      C().seq_lens({133, 40}).q_len(6).heads(16).page_size(16).short_table(1));
  add("far_beyond_the_table", kAll, C().seq_lens({900, 40}).q_len(2).page_size(16).short_table(40));
  deep = true;
  for (const int len : {1, 63, 130, 1000, 1024}) {
    for (const int splits : {0, 1}) {
      const std::string name = std::to_string(len) + (splits ? "_unsplit" : "");
      std::vector<Poison> every_key;
      for (int i = 0; i < len; ++i) every_key.push_back({Poison::kKey, 0, i, 575});
      add("nan_in_every_key_" + name, kAll,
          C().seq_lens({len, 70}).heads(16).poison(every_key).max_splits(splits));
      add("nan_in_a_key_" + name, kAll,
          C().seq_lens({len, 70}).heads(16).poison({{Poison::kKey, 0, len / 2, 3}}).max_splits(splits));
      add("nan_in_q_" + name, kAll,
          C().seq_lens({len, 70})
              .heads(16)
              .poison({{Poison::kQuery, 0, 0, 576 + 7}})
              .max_splits(splits)
              .within(3e-2));
    }
  }
  deep = false;
  add("nan_scales", kAll, C().seq_lens({130, 0, 700}).heads(16).nan_scales());
  // Tokens that only later query tokens see.
  add("nan_in_the_newest_key", kAll,
      C().seq_lens({200, 65}).heads(16).q_len(4).poison(
          {{Poison::kKey, 0, 198, 3}, {Poison::kKey, 1, 64, -1}}));
  add("nan_in_the_newest_value", kAll,
      C().seq_lens({200, 66, 130})
          .heads(16)
          .q_len(8)
          .separate_values()
          .poison({{Poison::kValue, 0, 196, 300},
                   {Poison::kValue, 0, 198, 5},
                   {Poison::kValue, 1, 65, -1},
                   {Poison::kValue, 2, 3, 100}}));
  add("scales_that_overflow", kAll,
      C().seq_lens({150, 3}).scales(1e25f, 1e25f).softmax_scale(1e-38f).scale_pointers().flat_scores());
  add("scales_that_vanish", kAll,
      C().seq_lens({150, 3}).scales(1e-30f, 1e-25f).softmax_scale(3e38f).scale_pointers().flat_scores());
  add("scales_far_apart", kAll,
      C().seq_lens({150, 700}).scales(3e-36f, 1e36f).softmax_scale(0.0139f).scale_pointers().flat_scores());
  add("softmax_scale_huge", kAll, C().seq_lens({150, 3}).softmax_scale(2e38f).no_lse().flat_scores());
  add("workspace_never_initialised", kAll,
      C().seq_lens({700, 0, 3, 64}).q_len(2).heads(16).uninitialised_workspace());
  add("alone_and_in_a_batch", kAll, C().seq_lens({2048, 30, 700, 0, 64}).max_splits(1).alone_too());
  add("alone_and_in_a_batch_folded", kAll,
      C().seq_lens({900, 30, 700, 0, 64}).heads(16).q_len(4).max_splits(1).alone_too());

  // Attention sinks and needles.
  const std::pair<double, const char*> weights[] = {
      {0.5, "0.5"}, {0.9, "0.9"}, {0.99, "0.99"}, {0.999, "0.999"}, {0.9999, "0.9999"}, {0.99999, "0.99999"}};
  deep = true;
  for (const auto& [weight, digits] : weights) {
    const auto name = [digits = digits](const std::string& what, int len) {
      return what + "_of_weight_" + digits + "_in_" + std::to_string(len);
    };
    // The emulated driver takes every other weight.
    const unsigned grids = weight == 0.9 || weight == 0.999 || weight == 0.99999 ? kAll : kGpu;
    for (const int len : {64, 256, 1024}) {
      const double bound = len < 256 ? 5e-2 : 3e-2;  // few tokens, 16 rows
      for (const int position : {0, 40}) {
        add(name("sink_at_" + std::to_string(position), len), grids,
            C().seq_lens({len}).heads(16).sink(weight, position).max_splits(1).within(bound));
      }
      add(name("sink_at_the_end", len), grids,
          C().seq_lens({len}).heads(16).sink(weight, len - 1).max_splits(1).within(bound));
      add(name("needle", len), grids, C().seq_lens({len}).heads(16).needle(weight, len / 3).within(3e-2));
    }
    add(name("sink_in_a_later_tile", 1024), grids,
        C().seq_lens({1024}).heads(16).sink(weight, 5 * 64 + 11).max_splits(1).within(3e-2));
    add(name("sink_split", 2500), grids, C().seq_lens({2500}).heads(16).sink(weight, 0).within(3e-2));
    add(name("sink_in_a_later_split", 2500), grids,
        C().seq_lens({2500}).heads(16).sink(weight, 1500).within(3e-2));
    for (const int len : {512, 8192, 131072}) {
      for (const int position : {0, 40, len / 2, len - 1}) {
        for (const bool split : {false, true}) {
          add(name((split ? "sink_split_at_" : "sink_unsplit_at_") + std::to_string(position), len), kFull,
              C().seq_lens({len}).sink(weight, position).max_splits(split ? 0 : 1).within(3e-2));
        }
      }
    }
  }
  deep = false;
  // One value for all, so that the exact output is the weight of all tokens but the first.
  add("sink_of_equal_rivals_13", kAll,
      C().seq_lens({4096}).heads(16).equal_rivals(13.0f).max_splits(1).within(3e-2));
  add("sink_of_equal_rivals_13_05", kAll,
      C().seq_lens({4096}).heads(16).equal_rivals(13.05f).max_splits(1).within(3e-2));
  add("sink_of_equal_rivals_13_long", kFull,
      C().seq_lens({65536}).equal_rivals(13.0f).max_splits(1).within(3e-2));
  add("sink_of_equal_rivals_13_05_long", kFull,
      C().seq_lens({65536}).equal_rivals(13.05f).max_splits(1).within(3e-2));

  // Everything below needs a GPU.
  add("single_1k", kGpu, C().equal(1, 1024));
  add("single_8k", kGpu, C().equal(1, 8192));
  add("single_64k", kGpu, C().equal(1, 65536));
  add("single_8k_small_values", kGpu, C().equal(1, 8192).small_values());
  add("equal_4x8k", kGpu, C().equal(4, 8192));
  add("ragged_16", kGpu, C().ragged(16, 0, 8000), true);
  add("ragged_16_small_values", kGpu, C().ragged(16, 0, 8000).small_values());
  add("ragged_16_steep", kGpu, C().ragged(16, 0, 8000).softmax_scale(0.25f));
  add("ragged_128", kGpu, C().ragged(128, 1, 4096));
  add("ragged_33_bad_pages", kGpu,
      C().ragged(33, 600, 5000).page_size(16).bad_pages({{0, 0, -1}, {3, 7, kOnePastPool}, {32, 20, -5}}));
  add("graph_replay_8", kGpu,
      C().ragged(8, 1000, 20000)
          .then({0, 0, 0, 0, 0, 0, 0, 0})
          .then({20000, 1, 0, 0, 0, 0, 0, 20000})
          .then({1, 1, 1, 1, 1, 1, 1, 1})
          .then({64, 63, 65, 128, 4096, 127, 129, 0})
          .graph());
  add("launch_again_8", kGpu,
      C().ragged(8, 1000, 20000).then({5, 0, 0, 7, 0, 20000, 0, 0}).then({900, 800, 700, 0, 1, 2, 3, 4}));
  add("two_streams", kGpu, C().ragged(6, 100, 9000).streams(2));
  add("two_streams_half_the_sms", kGpu, C().ragged(6, 100, 9000).streams(2).max_sms(64).repeats(3));
  add("repeat_100", kGpu, C().ragged(13, 0, 5000).repeats(100));
  add("repeat_100_single", kGpu, C().equal(1, 30000).repeats(100));
  add("repeat_100_q_len_3", kGpu, C().ragged(5, 0, 700).q_len(3).repeats(100));
  add("repeat_100_pdl", kGpu, C().ragged(5, 0, 700).pdl().repeats(100));

  add("single_10k_odd", kFull, C().equal(1, 10007));
  add("million", kFull, C().equal(1, 1000000));
  add("million_page_16", kFull, C().equal(1, 1000000).page_size(16));
  add("million_one_split", kFull, C().equal(1, 1000000).max_splits(1));
  add("million_among_short", kFull, C().seq_lens({3, 1000000, 0, 1, 64, 300}));
  add("million_q_len_2", kFull, C().equal(1, 1000000).q_len(2));
  add("two_to_the_20", kFull, C().equal(1, 1 << 20).page_size(128));
  add("batch_1024", kFull, C().ragged(1024, 0, 2048));
  add("batch_1024_one_token", kFull, C().equal(1024, 1));
  add("batch_1024_empty", kFull, C().equal(1024, 0));
  add("batch_1024_shared_pages", kFull, C().ragged(1024, 0, 8192).distinct_pages(2000));
  add("batch_1024_q_len_4", kFull, C().ragged(1024, 0, 600).q_len(4));
  add("batch_777_page_16", kFull, C().ragged(777, 0, 1000).page_size(16));
  add("pool_5_gib", kFull, C().ragged(9, 0, 9000).pool_bytes(int64_t{5} << 30));
  add("pool_5_gib_page_16", kFull, C().ragged(9, 0, 9000).pool_bytes(int64_t{5} << 30).page_size(16));
  add("pool_5_gib_strides", kFull,
      C().ragged(9, 0, 9000).pool_bytes(int64_t{5} << 30).pad_tokens(64).pad_pages(4096));
  add("pool_5_gib_separate_values", kFull,
      C().ragged(9, 0, 9000).pool_bytes(int64_t{5} << 30).separate_values());
  add("max_splits_3", kFull, C().seq_lens({20000, 100, 1, 7000}).max_splits(3));
  add("max_splits_5", kFull, C().seq_lens({20000, 100, 1, 7000}).max_splits(5));
  add("max_splits_16", kFull, C().equal(1, 40000).max_splits(16));
  add("max_sms_4", kFull, C().ragged(5, 0, 3000).max_sms(4));
  add("max_sms_8", kFull, C().ragged(5, 0, 3000).max_sms(8));
  add("max_sms_131", kFull, C().ragged(5, 0, 3000).max_sms(131));
  add("max_sms_huge", kFull, C().ragged(5, 0, 3000).max_sms(100000));
  add("scales_large", kFull, C().ragged(16, 0, 8000).scales(3.0f, 64.0f).softmax_scale(0.0002f));
  add("scales_tiny", kFull, C().ragged(16, 0, 8000).scales(0.01f, 0.001f).softmax_scale(4000.0f));
  add("scale_pointers_16", kFull, C().ragged(16, 0, 8000).scales(0.5f, 0.3f).scale_pointers().flat_scores());
  add("separate_values_16", kFull, C().ragged(16, 0, 8000).separate_values());
  add("strides_16", kFull, C().ragged(16, 0, 8000).pad_tokens(80).pad_pages(160).pad_table(3));
  add("token_major_16", kFull, C().ragged(16, 0, 8000).token_major());
  add("two_streams_long", kFull, C().seq_lens({100000, 50, 0}).streams(2).repeats(4));
  add("no_lse_16", kFull, C().ragged(16, 0, 8000).no_lse());
  for (int q_len = 1; q_len <= 8; ++q_len) {
    const std::string name = "q_len_" + std::to_string(q_len);
    add(name + "_ragged", kGpu, C().ragged(9, 0, 700).q_len(q_len));
    add(name + "_shorter", kFull, C().seq_lens({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).q_len(q_len));
    add(name + "_long", kFull, C().seq_lens({70000, 9, 0, 1025}).q_len(q_len));
  }
  for (const int heads : {1, 8, 16, 32, 64, 100, 127, 128}) {
    const std::string name = "heads_" + std::to_string(heads);
    add(name + "_ragged", kGpu, C().ragged(9, 0, 1500).heads(heads));
    add(name + "_q_len_2", kFull, C().ragged(9, 0, 1500).heads(heads).q_len(2));
    add(name + "_single", kFull, C().equal(1, 16384).heads(heads));
  }
  for (const int len :
       {2, 15, 16, 17, 31, 127, 128, 129, 191, 192, 193, 255, 256, 257, 511, 513, 1023, 1025, 4095}) {
    add("length_" + std::to_string(len), kFull, C().equal(3, len), true);
  }
  return cases;
}

bool takes_deep_case(const std::string& kernel, const std::string& name) {
  uint32_t hash = 2166136261;  // FNV-1a: the same everywhere
  for (const char c : kernel + "." + name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  return (hash ^ hash >> 15) % kDeepShare == 0;
}

unsigned needed_features(const DecodeCase& c) {
  unsigned features = 0;
  if (c.want_lse) features |= MLA_FEATURE_LSE;
  if (c.use_pdl) features |= MLA_FEATURE_PDL;
  if (c.own_values) features |= MLA_FEATURE_SEPARATE_VALUES;
  if (c.strided_rows) features |= MLA_FEATURE_STRIDES;
  if (!c.query_counts.empty()) features |= MLA_FEATURE_RAGGED_Q;
  if (!c.is_causal) features |= MLA_FEATURE_NON_CAUSAL;
  if (c.cp_size > 1) features |= MLA_FEATURE_CONTEXT_PARALLEL;
  return features;
}

std::string why_not(const DecodeCase& c, const KernelLimits& kernel) {
  if (c.page_tokens % kernel.page_size_multiple != 0 || c.page_tokens > kernel.page_size_max) {
    return "page size " + std::to_string(c.page_tokens) + ", the kernel has multiples of " +
           std::to_string(kernel.page_size_multiple) + " up to " + std::to_string(kernel.page_size_max);
  }
  const unsigned missing = needed_features(c) & ~kernel.features;
#define MLA_MISSING(word, NAME, number, meaning) \
  if (missing & (number)) return "the kernel has no " #word;
  MLA_FEATURE_WORDS(MLA_MISSING)
#undef MLA_MISSING
  return "";
}

}  // namespace mla::test

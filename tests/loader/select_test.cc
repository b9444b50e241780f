// SPDX-License-Identifier: Apache-2.0
//
// Selection: which kernel for which chip and problem, and why not another.
#include <algorithm>

#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

// The id of the kernel selected, "none" if there is none.
std::string selected(const Bundle& bundle, const mla_problem& problem) {
  uint32_t index = 0;
  const mla_status status = mla_select(bundle.get(), &problem, &index);
  if (status == MLA_ERROR_NO_KERNEL) return "none";
  EXPECT_OK(status);
  mla_kernel_info info = MLA_KERNEL_INFO_INIT;
  EXPECT_OK(mla_bundle_get_kernel(bundle.get(), index, &info));
  return info.id;
}

std::string explain(const Bundle& bundle, const mla_problem& problem) {
  uint64_t needed = 0;
  EXPECT_OK(mla_select_explain(bundle.get(), &problem, nullptr, 0, &needed));
  std::string text(needed, '?');
  EXPECT_OK(mla_select_explain(bundle.get(), &problem, text.data(), text.size(), &needed));
  EXPECT_EQ(needed, text.size());
  text.pop_back();
  return text;
}

TEST(Select, CompatibilityTable) {
  // reference: NVIDIA's rule for suffixes, one kernel a bundle.
  struct Row {
    uint32_t sm;
    const char* suffix;
    std::vector<std::pair<int, int>> runs_on;
  };
  const Row rows[] = {
      {90, "a", {{9, 0}}},
      {90, "", {{9, 0}}},
      {100, "a", {{10, 0}}},
      {100, "f", {{10, 0}, {10, 3}}},
      {100, "", {{10, 0}, {10, 1}, {10, 3}}},
      {103, "a", {{10, 3}}},
      {110, "f", {{11, 0}}},
      {120, "", {{12, 0}, {12, 1}}},
      {120, "a", {{12, 0}}},
      {120, "f", {{12, 0}, {12, 1}}},
      {121, "a", {{12, 1}}},
      {121, "f", {{12, 1}}},
      {121, "", {{12, 1}}},
      {89, "", {{8, 9}}},
      {80, "", {{8, 0}, {8, 6}, {8, 9}}},
  };
  const std::pair<int, int> chips[] = {{8, 0},  {8, 6},  {8, 9},  {9, 0},  {10, 0},
                                       {10, 1}, {10, 3}, {11, 0}, {12, 0}, {12, 1}};
  for (const Row& row : rows) {
    TestBundle files;
    files.add("k", row.sm, row.suffix);
    files.write();
    const Bundle bundle = open_bundle(files);
    for (const auto& chip : chips) {
      const bool runs = std::find(row.runs_on.begin(), row.runs_on.end(), chip) != row.runs_on.end();
      EXPECT_EQ(selected(bundle, problem_for(chip.first, chip.second)), runs ? "k" : "none")
          << "sm_" << row.sm << row.suffix << " on " << chip.first << "." << chip.second;
    }
  }
}

TEST(Select, ExactBeforeFamilyBeforeOlder) {
  TestBundle files;
  files.add("older", 120, "").facts.priority = 50;
  files.add("family", 120, "f").facts.priority = 40;
  files.add("closer_family", 121, "f").facts.priority = 5;
  files.add("arch", 120, "a").facts.priority = 0;
  files.add("plain_121", 121, "").facts.priority = 30;
  files.add("arch_121", 121, "a").facts.priority = -1;
  files.write();
  const Bundle bundle = open_bundle(files);
  EXPECT_EQ(selected(bundle, problem_for(12, 0)), "arch");
  EXPECT_EQ(selected(bundle, problem_for(12, 1)), "arch_121");
  EXPECT_EQ(
      explain(bundle, problem_for(12, 0)),
      "rank 1: arch (sm_120a, cost 4000 = 1 row tile of 4000, priority 0)\n"
      "rank 2: older (sm_120, cost 4000 = 1 row tile of 4000, priority 50)\n"
      "rank 3: family (sm_120f, cost 4000 = 1 row tile of 4000, priority 40)\n"
      "passed over: closer_family: built for sm_121f, which runs on compute capability 12.1 and later ones "
      "of "
      "its family, not on 12.0\n"
      "passed over: plain_121: built for sm_121, which runs on compute capability 12.1 and later ones of the "
      "same major, not on 12.0\n"
      "passed over: arch_121: built for sm_121a, which runs on compute capability 12.1 alone, not on 12.0\n");
  EXPECT_EQ(
      explain(bundle, problem_for(12, 1)),
      "rank 1: arch_121 (sm_121a, cost 4000 = 1 row tile of 4000, priority -1)\n"
      "rank 2: plain_121 (sm_121, cost 4000 = 1 row tile of 4000, priority 30)\n"
      "rank 3: closer_family (sm_121f, cost 4000 = 1 row tile of 4000, priority 5)\n"
      "rank 4: family (sm_120f, cost 4000 = 1 row tile of 4000, priority 40)\n"
      "rank 5: older (sm_120, cost 4000 = 1 row tile of 4000, priority 50)\n"
      "passed over: arch: built for sm_120a, which runs on compute capability 12.0 alone, not on 12.1\n");
}

TEST(Select, LeastCostThenPriorityThenId) {
  TestBundle files;
  const auto add = [&](const char* id, uint32_t rows, uint32_t tile_cost, int32_t priority = 0) {
    cubin::Facts& facts = files.add(id).facts;
    facts.rows = rows;
    facts.tile_cost = tile_cost;
    facts.priority = priority;
  };
  add("rows128", 128, 4000);
  add("rows64_b", 64, 2100);
  add("rows64_a", 64, 2100);
  add("rows16", 16, 900);
  add("rows16_better", 16, 900, 1);
  files.write();
  const Bundle bundle = open_bundle(files);
  struct Case {
    int heads, q_len;
    const char* id;
  };
  const Case cases[] = {{128, 1, "rows128"},       // 4000 against 2 * 2100 and 8 * 900
                        {65, 1, "rows128"},        // the same
                        {64, 1, "rows64_a"},       // 2100 against 4000 and 4 * 900
                        {48, 1, "rows64_a"},       // 2100 against 3 * 900
                        {32, 1, "rows16_better"},  // 2 * 900 against 2100
                        {16, 1, "rows16_better"},
                        {1, 1, "rows16_better"},
                        // Query tokens and heads fold into rows.
                        {16, 2, "rows16_better"},
                        {16, 4, "rows64_a"},
                        {16, 8, "rows128"},
                        {32, 2, "rows64_a"},
                        {128, 3, "rows128"},
                        {64, 3, "rows64_a"},  // 192 rows: 3 * 2100 against 2 * 4000
                        {1, 33, "rows64_a"}};
  for (const Case& c : cases) {
    mla_problem problem = problem_for(12, 0);
    problem.heads = c.heads;
    problem.q_len = c.q_len;
    EXPECT_EQ(selected(bundle, problem), c.id) << c.heads << " heads, q_len " << c.q_len;
  }
  mla_problem problem = problem_for(12, 0);
  problem.heads = 64;
  problem.q_len = 3;
  EXPECT_EQ(explain(bundle, problem),
            "rank 1: rows64_a (sm_120f, cost 6300 = 3 row tiles of 2100, priority 0)\n"
            "rank 2: rows64_b (sm_120f, cost 6300 = 3 row tiles of 2100, priority 0)\n"
            "rank 3: rows128 (sm_120f, cost 8000 = 2 row tiles of 4000, priority 0)\n"
            "rank 4: rows16_better (sm_120f, cost 10800 = 12 row tiles of 900, priority 1)\n"
            "rank 5: rows16 (sm_120f, cost 10800 = 12 row tiles of 900, priority 0)\n");
}

// With batch, length and multiprocessors the cost is the modelled time of the busiest worker.
TEST(Select, HintsOfBatchAndLength) {
  TestBundle files;
  const auto add = [&](const char* id, uint32_t rows, uint32_t cluster_size, uint32_t tile_cost) {
    cubin::Facts& facts = files.add(id).facts;
    facts.rows = rows;
    facts.cluster_size = cluster_size;
    facts.tile_cost = tile_cost;
    facts.item_overhead = 2;
    facts.min_share = 2;
    facts.max_workers = 256;
  };
  add("rows16", 16, 1, 1250);
  add("rows64", 64, 1, 1620);
  add("rows128", 128, 2, 3200);
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 0);
  problem.heads = 128;
  EXPECT_EQ(selected(bundle, problem), "rows128") << "3200 against 2 * 1620 and 8 * 1250";
  // One request of 16 tiles: eight row tiles of 16 fill the device better than one of 128.
  problem.batch = 1;
  problem.seq_len = 1024;
  EXPECT_EQ(selected(bundle, problem), "rows128") << "a hint is missing";
  problem.sm_count = 132;
  // 8 * 18 units on 72 workers: 2 and a merge of 8 are 10 * 1250 ns; 2 * 18 on 18: 10 * 1620; 18 on 9:
  // 10 * 3200 / 2.
  EXPECT_EQ(explain(bundle, problem),
            "rank 1: rows16 (sm_120f, cost 12500 ns with 8 row tiles of 1250, priority 0)\n"
            "rank 2: rows128 (sm_120f, cost 16000 ns with 1 row tile of 3200, priority 0)\n"
            "rank 3: rows64 (sm_120f, cost 16200 ns with 2 row tiles of 1620, priority 0)\n");
  // Many requests: as without hints. 64 whole items of 130 units on 66 clusters; 128 on 132 CTAs.
  problem.batch = 64;
  problem.seq_len = 8192;
  EXPECT_EQ(explain(bundle, problem),
            "rank 1: rows128 (sm_120f, cost 208000 ns with 1 row tile of 3200, priority 0)\n"
            "rank 2: rows64 (sm_120f, cost 210600 ns with 2 row tiles of 1620, priority 0)\n"
            "rank 3: rows16 (sm_120f, cost 641250 ns with 8 row tiles of 1250, priority 0)\n");
  // More than a launch can have is no reason to fail.
  problem.batch = 0x7fffffff;
  problem.seq_len = 0x7fffffff;
  EXPECT_EQ(selected(bundle, problem), "rows128");
}

// The target comes before the cost: a kernel for the family is no substitute for one for the chip.
TEST(Select, TargetBeforeCost) {
  TestBundle files;
  files.add("family").facts.tile_cost = 1;
  files.add("arch", 120, "a").facts.tile_cost = 1000000000;
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 0);
  problem.q_len = 64;
  EXPECT_EQ(selected(bundle, problem), "arch");
}

// Without the requirement row_tiles every query token is computed by itself.
TEST(Select, KernelsThatDoNotFold) {
  TestBundle files;
  cubin::Facts& facts = files.add("single").facts;
  facts.rows = 64;
  facts.requires_bits = requirement::kPARTIALS;
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 0);
  problem.heads = 16;
  problem.q_len = 4;
  EXPECT_EQ(explain(bundle, problem),
            "rank 1: single (sm_120f, cost 16000 = 4 row tiles of 4000, priority 0)\n");
  problem.heads = 65;
  EXPECT_EQ(explain(bundle, problem), "passed over: single: serves up to 64 heads, wanted 65\n");
}

TEST(Select, ArithmeticAndLayout) {
  TestBundle files;
  files.add("quantised").facts.tile_cost = 100;
  cubin::Facts& exact = files.add("exact").facts;
  exact.arithmetic = arithmetic::kEXACT;
  exact.tile_cost = 90;
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 0);
  EXPECT_EQ(selected(bundle, problem), "exact") << "any arithmetic: the cheaper one";
  problem.arithmetic = MLA_ARITHMETIC_QUANTISED;
  EXPECT_EQ(selected(bundle, problem), "quantised");
  problem.arithmetic = MLA_ARITHMETIC_EXACT;
  EXPECT_EQ(selected(bundle, problem), "exact");
}

// Any multiple of the kernel's own, not powers of two alone.
TEST(Select, PageSizes) {
  TestBundle files;
  cubin::Facts& facts = files.add("k").facts;
  facts.page_size_multiple = 16;
  facts.page_size_max = 1024;
  files.write();
  const Bundle bundle = open_bundle(files);
  for (const auto& [page_size, serves] : {std::pair(0, true),
                                          {16, true},
                                          {48, true},
                                          {944, true},
                                          {1024, true},
                                          {8, false},
                                          {24, false},
                                          {1040, false}}) {
    mla_problem problem = problem_for(12, 0);
    problem.page_size = page_size;
    EXPECT_EQ(selected(bundle, problem), serves ? "k" : "none") << page_size;
  }
}

TEST(Select, Merge) {
  TestBundle files;
  files.add("decode");
  files.add(make_merge_kernel("merge", 120, "f"));
  manifest::Kernel f32 = make_merge_kernel("merge_f32", 120, "f");
  f32.facts.partial_dtype = dtype::kF32;
  f32.facts.out_dtype = dtype::kF32;
  files.add(f32);
  files.write();
  const Bundle bundle = open_bundle(files);
  EXPECT_EQ(selected(bundle, problem_for(12, 0)), "decode");
  mla_problem problem = MLA_PROBLEM_INIT;
  problem.cc_major = 12;
  problem.kind = MLA_KIND_MERGE;
  problem.features = MLA_FEATURE_LSE;
  EXPECT_EQ(selected(bundle, problem), "merge") << "heads need not be given";
  EXPECT_EQ(explain(bundle, problem),
            "rank 1: merge (sm_120f, cost 1 = 1 row tile of 1, priority 0)\n"
            "passed over: decode: kind is decode, wanted merge\n"
            "passed over: merge_f32: partial out is f32, wanted bf16; out is f32, wanted bf16\n");
  problem.partial_dtype = problem.out_dtype = MLA_DTYPE_F32;
  EXPECT_EQ(selected(bundle, problem), "merge_f32");
}

// A zeroed struct is the usual problem but for what has no default.
TEST(Select, ZeroIsTheDefault) {
  TestBundle files;
  files.add("k");
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem zero = MLA_PROBLEM_INIT;
  zero.cc_major = 12;
  zero.heads = 16;
  mla_problem spelt = zero;
  spelt.kind = MLA_KIND_DECODE;
  spelt.q_dtype = spelt.kv_dtype = MLA_DTYPE_E4M3;
  spelt.out_dtype = MLA_DTYPE_BF16;
  spelt.head_dim_k = 576;
  spelt.head_dim_v = 512;
  spelt.q_len = 1;
  spelt.page_size = 64;
  spelt.cache_layout = MLA_CACHE_LAYOUT_DENSE;
  EXPECT_EQ(selected(bundle, zero), "k");
  EXPECT_EQ(explain(bundle, zero), explain(bundle, spelt));
}

TEST(Select, EveryReason) {
  TestBundle files;
  manifest::Kernel& small = files.add("small");
  small.facts.rows = 64;
  small.facts.requires_bits = 0;
  small.facts.features = 0;
  small.facts.page_size_max = 128;
  manifest::Kernel& other = files.add("other", 90, "a");
  other.facts.q_dtype = other.facts.kv_dtype = MLA_DTYPE_BF16;
  other.facts.k_swizzle = other.facts.v_swizzle = 128;
  other.facts.v_box = 64;
  other.facts.family = MLA_FAMILY_HOPPER;
  other.facts.mma = MLA_MMA_BLOCK_SCALED;
  other.facts.page_size_multiple = other.facts.page_size_max = 64;
  other.facts.arithmetic = MLA_ARITHMETIC_EXACT;
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 1);
  problem.features = MLA_FEATURE_LSE | MLA_FEATURE_SEPARATE_VALUES;
  problem.page_size = 160;
  problem.arithmetic = MLA_ARITHMETIC_QUANTISED;
  problem.family = MLA_FAMILY_CLUSTER;
  problem.mma = MLA_MMA_PLAIN;
  const std::string lines =
      "passed over: small: serves up to 64 heads, wanted 128; serves page sizes that are multiples of 16 up "
      "to 128, wanted 160; lacks LSE, SEPARATE_VALUES\n"
      "passed over: other: built for sm_90a, which runs on compute capability 9.0 alone, not on 12.1; q is "
      "bf16, wanted e4m3; kv is bf16, wanted e4m3; family is hopper, wanted cluster; mma is block_scaled, "
      "wanted plain; arithmetic is exact, wanted quantised; serves page sizes that are multiples of 64 up to "
      "64, wanted 160\n";
  EXPECT_EQ(explain(bundle, problem), lines);
  uint32_t index = 0;
  EXPECT_ERROR(mla_select(bundle.get(), &problem, &index), MLA_ERROR_NO_KERNEL,
               "no kernel for compute capability 12.1 and this problem:\n" + lines);
  problem.head_dim_k = 320;
  problem.head_dim_v = 256;
  problem.out_dtype = MLA_DTYPE_F32;
  EXPECT_NE(explain(bundle, problem).find("; out is bf16, wanted f32; "), std::string::npos)
      << explain(bundle, problem);
  EXPECT_NE(explain(bundle, problem).find("; head_dim_k is 576, wanted 320; head_dim_v is 512, wanted 256; "),
            std::string::npos)
      << explain(bundle, problem);
}

TEST(Select, FamilyAndMma) {
  TestBundle files;
  files.add("plain").facts.mma = MLA_MMA_PLAIN;
  files.add("scaled").facts.mma = MLA_MMA_BLOCK_SCALED;
  files.manifest().kernels.back().facts.priority = 1;
  files.add("hopper", 90, "a").facts.family = MLA_FAMILY_HOPPER;
  files.add("cluster", 90, "a");
  files.manifest().kernels.back().facts.priority = -1;
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 0);
  EXPECT_EQ(selected(bundle, problem), "scaled");
  problem.mma = MLA_MMA_PLAIN;
  EXPECT_EQ(selected(bundle, problem), "plain");
  problem = problem_for(9, 0);
  EXPECT_EQ(selected(bundle, problem), "hopper");
  problem.family = MLA_FAMILY_CLUSTER;
  EXPECT_EQ(selected(bundle, problem), "cluster");
}

TEST(Select, Arguments) {
  TestBundle files;
  files.add("k");
  files.write();
  const Bundle bundle = open_bundle(files);
  uint32_t index = 5;
  const auto expect = [&](auto change, const std::string& sentence) {
    mla_problem problem = problem_for(12, 0);
    change(problem);
    EXPECT_ERROR(mla_select(bundle.get(), &problem, &index), MLA_ERROR_INVALID_ARGUMENT, sentence);
    EXPECT_ERROR(mla_select_explain(bundle.get(), &problem, nullptr, 0, nullptr), MLA_ERROR_INVALID_ARGUMENT,
                 sentence);
    EXPECT_EQ(index, 5u);
  };
  using P = mla_problem;
  expect([](P& p) { p.features = 0x400; },
         "problem.features is 0x400; this library knows the bits 0x3ff: LSE, PDL, SEPARATE_VALUES, STRIDES, "
         "RAGGED_Q, NON_CAUSAL, CONTEXT_PARALLEL, FIXED_SPLIT, WINDOW, SPARSE");
  expect([](P& p) { p.kind = 3; },
         "problem.kind is 3; allowed: 0 (MLA_KIND_DECODE), MLA_KIND_DECODE (1), MLA_KIND_MERGE (2)");
  expect([](P& p) { p.cc_major = 0; },
         "problem.cc_major is 0; selection needs the compute capability of the device, for instance cc_major "
         "12 and "
         "cc_minor 0");
  expect([](P& p) { p.cc_major = -1; }, "problem.cc_major is -1; allowed: 0 ... 99");
  expect([](P& p) { p.cc_minor = 10; }, "problem.cc_minor is 10; allowed: 0 ... 9");
  const std::string dtypes = "MLA_DTYPE_E4M3 (1), MLA_DTYPE_BF16 (2), MLA_DTYPE_F32 (3)";
  expect([](P& p) { p.q_dtype = 4; }, "problem.q_dtype is 4; allowed: 0 (e4m3), " + dtypes);
  expect([](P& p) { p.kv_dtype = 9; }, "problem.kv_dtype is 9; allowed: 0 (e4m3), " + dtypes);
  expect([](P& p) { p.partial_dtype = 9; }, "problem.partial_dtype is 9; allowed: 0 (bf16), " + dtypes);
  expect([](P& p) { p.out_dtype = -1; }, "problem.out_dtype is -1; allowed: 0 (bf16), " + dtypes);
  expect([](P& p) { p.head_dim_k = -1; }, "problem.head_dim_k is -1; allowed: 0 ... 65535");
  expect([](P& p) { p.head_dim_v = 70000; }, "problem.head_dim_v is 70000; allowed: 0 ... 65535");
  expect([](P& p) { p.heads = 0; },
         "problem.heads is 0; must be given, there is no default: the query heads on this device, 1 ... 128");
  expect([](P& p) { p.heads = 129; }, "problem.heads is 129; allowed: 1 ... 128");
  expect([](P& p) { p.q_len = 65; }, "problem.q_len is 65; allowed: 0 ... 64");
  expect([](P& p) { p.page_size = -16; }, "problem.page_size is -16; allowed: 0 ... 1048576");
  expect([](P& p) { p.family = 9; },
         "problem.family is 9; allowed: 0 (any), MLA_FAMILY_CLUSTER (1), MLA_FAMILY_HOPPER (2), "
         "MLA_FAMILY_MERGE (3)");
  expect(
      [](P& p) { p.mma = 9; },
      "problem.mma is 9; allowed: 0 (any), MLA_MMA_PLAIN (1), MLA_MMA_BLOCK_SCALED (2), MLA_MMA_WGMMA (3)");
  expect([](P& p) { p.arithmetic = 3; },
         "problem.arithmetic is 3; allowed: 0 (any), MLA_ARITHMETIC_QUANTISED (1), MLA_ARITHMETIC_EXACT (2)");
  expect([](P& p) { p.cache_layout = 2; },
         "problem.cache_layout is 2; allowed: 0 (MLA_CACHE_LAYOUT_DENSE), MLA_CACHE_LAYOUT_DENSE (1)");
  expect([](P& p) { p.batch = -1; }, "problem.batch is -1; allowed: 0 ... 2147483647");
  expect([](P& p) { p.sm_count = 65536; }, "problem.sm_count is 65536; allowed: 0 ... 65535");
  expect([](P& p) { p.reserved = 1; }, "problem.reserved is 1; allowed: 0 ... 0");
  expect([](P& p) { p.device_class = 1; }, "problem.device_class is 1; allowed: 0 ... 0");
  expect([](P& p) { p.seq_len = int64_t{1} << 31; },
         "problem.seq_len is 2147483648; allowed: 0 ... 2147483647");
  expect([](P& p) { p.struct_size = 8; },
         "problem.struct_size is 8; must be sizeof(mla_problem), 112 in this library (0.1.0)");

  const mla_problem problem = problem_for(12, 0);
  EXPECT_ERROR(mla_select(nullptr, &problem, &index), MLA_ERROR_INVALID_ARGUMENT, "bundle is null");
  EXPECT_ERROR(mla_select(bundle.get(), nullptr, &index), MLA_ERROR_INVALID_ARGUMENT, "problem is null");
  EXPECT_ERROR(mla_select(bundle.get(), &problem, nullptr), MLA_ERROR_INVALID_ARGUMENT,
               "kernel_index is null");
}

TEST(Select, ExplainIsCutToTheBuffer) {
  TestBundle files;
  files.add("k");
  files.write();
  const Bundle bundle = open_bundle(files);
  const mla_problem problem = problem_for(12, 0);
  char buffer[8] = "#######";
  uint64_t needed = 0;
  EXPECT_OK(mla_select_explain(bundle.get(), &problem, buffer, sizeof buffer, &needed));
  EXPECT_STREQ(buffer, "rank 1:");
  EXPECT_EQ(needed, std::strlen("rank 1: k (sm_120f, cost 4000 = 1 row tile of 4000, priority 0)\n") + 1);
}

TEST(Select, EmptyBundle) {
  TestBundle files;
  files.write();
  const Bundle bundle = open_bundle(files);
  const mla_problem problem = problem_for(12, 0);
  uint32_t index = 0;
  EXPECT_ERROR(mla_select(bundle.get(), &problem, &index), MLA_ERROR_NO_KERNEL,
               "no kernel for compute capability 12.0 and this problem:\nthe bundle has no kernels\n");
}

}  // namespace
}  // namespace mla::test

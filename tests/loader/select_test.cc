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
  files.add("older", 120, "").priority = 50;
  files.add("family", 120, "f").priority = 40;
  files.add("closer_family", 121, "f").priority = 5;
  files.add("arch", 120, "a").priority = 0;
  files.add("plain_121", 121, "").priority = 30;
  files.add("arch_121", 121, "a").priority = -1;
  files.write();
  const Bundle bundle = open_bundle(files);
  EXPECT_EQ(selected(bundle, problem_for(12, 0)), "arch");
  EXPECT_EQ(selected(bundle, problem_for(12, 1)), "arch_121");
  EXPECT_EQ(
      explain(bundle, problem_for(12, 0)),
      "rank 1: arch (sm_120a, 128 rows, priority 0)\n"
      "rank 2: older (sm_120, 128 rows, priority 50)\n"
      "rank 3: family (sm_120f, 128 rows, priority 40)\n"
      "passed over: closer_family: built for sm_121f, which runs on compute capability 12.1 and later ones "
      "of "
      "its family, not on 12.0\n"
      "passed over: plain_121: built for sm_121, which runs on compute capability 12.1 and later ones of the "
      "same major, not on 12.0\n"
      "passed over: arch_121: built for sm_121a, which runs on compute capability 12.1 alone, not on 12.0\n");
  EXPECT_EQ(
      explain(bundle, problem_for(12, 1)),
      "rank 1: arch_121 (sm_121a, 128 rows, priority -1)\n"
      "rank 2: plain_121 (sm_121, 128 rows, priority 30)\n"
      "rank 3: closer_family (sm_121f, 128 rows, priority 5)\n"
      "rank 4: family (sm_120f, 128 rows, priority 40)\n"
      "rank 5: older (sm_120, 128 rows, priority 50)\n"
      "passed over: arch: built for sm_120a, which runs on compute capability 12.0 alone, not on 12.1\n");
}

TEST(Select, SmallestRowTileThenPriorityThenId) {
  TestBundle files;
  files.add("rows128").config.rows = 128;
  files.add("rows64_b").config.rows = 64;
  files.add("rows64_a").config.rows = 64;
  files.add("rows16").config.rows = 16;
  files.add("rows16_better").config.rows = 16;
  files.manifest().kernels.back().priority = 1;
  files.write();
  const Bundle bundle = open_bundle(files);
  const std::pair<int, const char*> cases[] = {{128, "rows128"}, {65, "rows128"},       {64, "rows64_a"},
                                               {17, "rows64_a"}, {16, "rows16_better"}, {1, "rows16_better"}};
  for (const auto& [heads, id] : cases) {
    mla_problem problem = problem_for(12, 0);
    problem.heads = heads;
    EXPECT_EQ(selected(bundle, problem), id) << heads << " heads";
    // Query tokens are row tiles of their own.
    problem.q_len = 8;
    EXPECT_EQ(selected(bundle, problem), id) << heads << " heads, q_len 8";
  }
}

TEST(Select, EveryReason) {
  TestBundle files;
  manifest::Kernel& small = files.add("small");
  small.config.rows = 64;
  small.config.features = 0;
  manifest::Kernel& other = files.add("other", 90, "a");
  other.config.q_dtype = other.config.kv_dtype = MLA_DTYPE_BF16;
  other.config.k_swizzle = other.config.v_swizzle = 128;
  other.config.v_box = 64;
  other.config.family = MLA_FAMILY_HOPPER;
  other.config.mma = MLA_MMA_BLOCK_SCALED;
  other.config.page_size_min = other.config.page_size_max = 64;
  files.write();
  const Bundle bundle = open_bundle(files);
  mla_problem problem = problem_for(12, 1);
  problem.features = MLA_FEATURE_LSE | MLA_FEATURE_SEPARATE_VALUES;
  problem.page_size = 256;
  problem.family = MLA_FAMILY_CLUSTER;
  problem.mma = MLA_MMA_PLAIN;
  const std::string lines =
      "passed over: small: serves up to 64 heads, wanted 128; serves page sizes 16 ... 128, wanted 256; "
      "lacks feature "
      "LSE, SEPARATE_VALUES\n"
      "passed over: other: built for sm_90a, which runs on compute capability 9.0 alone, not on 12.1; q is "
      "bf16, "
      "wanted e4m3; kv is bf16, wanted e4m3; serves page sizes 64 ... 64, wanted 256; family is hopper, "
      "wanted "
      "cluster; mma is block_scaled, wanted plain\n";
  EXPECT_EQ(explain(bundle, problem), lines);
  uint32_t index = 0;
  EXPECT_ERROR(mla_select(bundle.get(), &problem, &index), MLA_ERROR_NO_KERNEL,
               "no kernel for compute capability 12.1 and this problem:\n" + lines);
  problem.head_dim_k = 320;
  problem.head_dim_v = 256;
  problem.out_dtype = MLA_DTYPE_E4M3;
  EXPECT_NE(
      explain(bundle, problem)
          .find("out is bf16, wanted e4m3; head_dim_k is 576, wanted 320; head_dim_v is 512, wanted 256"),
      std::string::npos)
      << explain(bundle, problem);
}

TEST(Select, FamilyAndMma) {
  TestBundle files;
  files.add("plain").config.mma = MLA_MMA_PLAIN;
  files.add("scaled").config.mma = MLA_MMA_BLOCK_SCALED;
  files.manifest().kernels.back().priority = 1;
  files.add("hopper", 90, "a").config.family = MLA_FAMILY_HOPPER;
  files.add("cluster", 90, "a");
  files.manifest().kernels.back().priority = -1;
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
  expect([](P& p) { p.features = 0x18; },
         "problem.features is 0x18; known bits: MLA_FEATURE_LSE (0x1), MLA_FEATURE_PDL (0x2), "
         "MLA_FEATURE_SEPARATE_VALUES (0x4)");
  expect([](P& p) { p.cc_major = 0; },
         "problem.cc_major is 0; selection needs the compute capability of the device, for instance cc_major "
         "12 and "
         "cc_minor 0");
  expect([](P& p) { p.cc_major = -1; }, "problem.cc_major is -1; allowed: 0 ... 99");
  expect([](P& p) { p.cc_minor = 10; }, "problem.cc_minor is 10; allowed: 0 ... 9");
  expect([](P& p) { p.q_dtype = 0; },
         "problem.q_dtype is 0; allowed: MLA_DTYPE_E4M3 (1), MLA_DTYPE_BF16 (2)");
  expect([](P& p) { p.kv_dtype = 3; },
         "problem.kv_dtype is 3; allowed: MLA_DTYPE_E4M3 (1), MLA_DTYPE_BF16 (2)");
  expect([](P& p) { p.out_dtype = -1; },
         "problem.out_dtype is -1; allowed: MLA_DTYPE_E4M3 (1), MLA_DTYPE_BF16 (2)");
  expect([](P& p) { p.head_dim_k = 0; }, "problem.head_dim_k is 0; allowed: 1 ... 65535");
  expect([](P& p) { p.head_dim_v = 70000; }, "problem.head_dim_v is 70000; allowed: 1 ... 65535");
  expect([](P& p) { p.heads = 0; }, "problem.heads is 0; allowed: 1 ... 128");
  expect([](P& p) { p.heads = 129; }, "problem.heads is 129; allowed: 1 ... 128");
  expect([](P& p) { p.q_len = 65; }, "problem.q_len is 65; allowed: 1 ... 64");
  expect([](P& p) { p.page_size = 48; }, "problem.page_size is 48; allowed: powers of two from 1 to 1048576");
  expect([](P& p) { p.page_size = 0; }, "problem.page_size is 0; allowed: powers of two from 1 to 1048576");
  expect([](P& p) { p.family = 3; },
         "problem.family is 3; allowed: MLA_FAMILY_ANY (0), MLA_FAMILY_CLUSTER (1), MLA_FAMILY_HOPPER (2)");
  expect([](P& p) { p.mma = 3; },
         "problem.mma is 3; allowed: MLA_MMA_ANY (0), MLA_MMA_PLAIN (1), MLA_MMA_BLOCK_SCALED (2)");
  expect([](P& p) { p.struct_size = 8; },
         "problem.struct_size is 8; must be sizeof(mla_problem), 56 in this library (0.1.0)");

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
  EXPECT_EQ(needed, std::strlen("rank 1: k (sm_120f, 128 rows, priority 0)\n") + 1);
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

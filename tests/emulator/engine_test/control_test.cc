// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

// Stores %r9 of every thread to p0[tid].
const char* const kStore =
    "\nld.param.u64 %rd1, [p0];\nmov.u32 %r90, %tid.x;\nmul.wide.u32 %rd2, %r90, 4;\nadd.u64 %rd1, %rd1, "
    "%rd2;\nst.global.u32 "
    "[%rd1], %r9;\nret;";

std::vector<uint32_t> per_thread(const std::string& body, uint32_t threads = 32,
                                 const std::string& globals = "") {
  Emulator e;
  e.config.block = {threads, 1, 1};
  uint64_t out = *e.memory.allocate(threads * 4);
  e.run(kernel(body + kStore, "", globals), {out});
  EXPECT_TRUE(e.report.ok()) << e.report.fault.text();
  return e.download<uint32_t>(out, threads);
}

TEST(Control, NestedDivergenceReconverges) {
  // The barrier after the branches is .aligned: it fails unless the warp has reconverged.
  auto r = per_thread(R"(mov.u32 %r1, %laneid;
  mov.u32 %r9, 0;
  setp.lt.u32 %p1, %r1, 16;
  @!%p1 bra ELSE;
  add.u32 %r9, %r9, 1;
  setp.lt.u32 %p2, %r1, 5;
  @!%p2 bra INNER;
  add.u32 %r9, %r9, 10;
  INNER:
  add.u32 %r9, %r9, 100;
  bra JOIN;
  ELSE:
  add.u32 %r9, %r9, 1000;
  JOIN:
  bar.sync 0;)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], i < 5 ? 111u : i < 16 ? 101u : 1000u) << i;
}

TEST(Control, LoopWithDifferentTripCounts) {
  auto r = per_thread(R"(mov.u32 %r1, %laneid;
  mov.u32 %r9, 0;
  mov.u32 %r2, 0;
  LOOP:
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra END;
  add.u32 %r9, %r9, %r2;
  add.u32 %r2, %r2, 1;
  bra LOOP;
  END:
  bar.sync 0;)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], i * (i - 1) / 2) << i;
}

TEST(Control, ColdBlockBehindTheEnd) {
  // The cold block jumps back: lowest-pc scheduling would not reconverge at BACK.
  auto r = per_thread(R"(mov.u32 %r1, %laneid;
  mov.u32 %r9, 1;
  setp.eq.u32 %p1, %r1, 3;
  @%p1 bra COLD;
  BACK:
  bar.sync 0;
  bra STORE;
  COLD:
  mov.u32 %r9, 2;
  bra BACK;
  STORE:)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], i == 3 ? 2u : 1u);
}

TEST(Control, IndexedBranch) {
  auto r = per_thread(R"(mov.u32 %r1, %laneid;
  and.b32 %r2, %r1, 3;
  TS: .branchtargets L0, L1, L2, L1;
  brx.idx %r2, TS;
  L0:
  mov.u32 %r9, 10;
  bra JOIN;
  L1:
  mov.u32 %r9, 11;
  bra JOIN;
  L2:
  mov.u32 %r9, 12;
  JOIN:
  bar.sync 0;)");
  const uint32_t want[] = {10, 11, 12, 11};
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], want[i % 4]);
}

TEST(Control, CallsWithDivergentReturn) {
  auto r = per_thread(R"(mov.u32 %r1, %laneid;
  {
  .param .b32 a;
  .param .b32 v;
  st.param.b32 [a], %r1;
  call (v), half_or_ten, (a);
  ld.param.b32 %r9, [v];
  }
  bar.sync 0;)",
                      32, R"(.func (.param .b32 result) half_or_ten(.param .b32 x)
{
  .reg .b32 %a<4>;
  .reg .pred %q;
  ld.param.b32 %a1, [x];
  setp.lt.u32 %q, %a1, 10;
  mov.u32 %a2, 10;
  st.param.b32 [result], %a2;
  @%q ret;
  shr.u32 %a2, %a1, 1;
  st.param.b32 [result], %a2;
  ret;
}
)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], i < 10 ? 10u : i / 2);
}

TEST(Control, EarlyExitLeavesTheOthersRunning) {
  Emulator e;
  uint64_t out = e.upload(std::vector<uint32_t>(32, 0));
  e.run(kernel(std::string(R"(mov.u32 %r1, %laneid;
  setp.lt.u32 %p1, %r1, 7;
  @%p1 exit;
  bar.sync 0;
  mov.u32 %r9, 5;)") +
               kStore),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  auto r = e.download<uint32_t>(out, 32);
  EXPECT_EQ(std::accumulate(r.begin(), r.end(), 0u), 125u);
}

TEST(Control, WarpOperations) {
  auto lanes = per_thread(R"(mov.u32 %r1, %laneid;
  shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(lanes[i], i ^ 1);
  lanes = per_thread(R"(mov.u32 %r1, %laneid;
  shfl.sync.up.b32 %r9|%p1, %r1, 3, 0, -1;
  @!%p1 mov.u32 %r9, 99;)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(lanes[i], i < 3 ? 99 : i - 3);
  lanes = per_thread(R"(mov.u32 %r1, %laneid;
  shfl.sync.idx.b32 %r9, %r1, 5, 0x181f, -1;)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(lanes[i], (i & 24) + 5);
  lanes = per_thread(R"(mov.u32 %r1, %laneid;
  setp.gt.u32 %p1, %r1, 29;
  vote.sync.ballot.b32 %r9, %p1, -1;)");
  EXPECT_EQ(lanes[0], 0xc0000000u);
  lanes = per_thread(R"(elect.sync %r9|%p1, -1;
  @!%p1 mov.u32 %r9, 77;)");
  EXPECT_EQ(lanes[0], 0u);
  EXPECT_EQ(lanes[1], 77u);
  lanes = per_thread(R"(mov.u32 %r1, %laneid;
  shr.u32 %r2, %r1, 4;
  match.any.sync.b32 %r9, %r2, -1;)");
  EXPECT_EQ(lanes[3], 0xffffu);
  EXPECT_EQ(lanes[20], 0xffff0000u);
  lanes = per_thread(R"(mov.u32 %r1, %laneid;
  redux.sync.add.u32 %r9, %r1, -1;)");
  EXPECT_EQ(lanes[9], 496u);
}

TEST(Control, SpecialRegisters) {
  Emulator e;
  e.config.grid = {4, 1, 1};
  e.config.cluster = {2, 1, 1};
  e.config.block = {4, 2, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(4 * 4, 0));
  e.run(kernel(R"(ld.param.u64 %rd1, [p0];
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %rd2, %r1, 16;
  add.u64 %rd1, %rd1, %rd2;
  mov.u32 %r5, %tid.x;
  mov.u32 %r6, %tid.y;
  or.b32 %r7, %r5, %r6;
  setp.ne.u32 %p1, %r7, 0;
  @%p1 exit;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r3, %clusterid.x;
  mov.u32 %r4, %nclusterid.x;
  mov.u32 %r5, %ntid.y;
  st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};)"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(out, 16),
            (std::vector<uint32_t>{0, 0, 2, 2, 1, 0, 2, 2, 0, 1, 2, 2, 1, 1, 2, 2}));
}

TEST(Control, DivergentAlignedInstructionIsAFault) {
  Emulator e;
  EXPECT_TRUE(faults_with(e.run(kernel(R"(mov.u32 %r1, %laneid;
  setp.lt.u32 %p1, %r1, 16;
  @%p1 bar.sync 0;
  ret;)")),
                          FaultKind::kDivergence,
                          "PTX line 14 '@%p1 bar.sync 0;': a barrier with .aligned (bar.sync) must be "
                          "executed by all threads of the warp together, but of the live lanes "
                          "0xffffffff only 0x0000ffff execute it"));
}

TEST(Control, ShuffleOutsideItsMaskIsAFault) {
  Emulator e;
  EXPECT_TRUE(
      faults_with(e.run(kernel("mov.u32 %r1, %laneid;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, 0x7fffffff;")),
                  FaultKind::kDivergence, "lane 31 executes it, but is not in its member mask 0x7fffffff"));
}

TEST(Control, BudgetAndTrap) {
  Emulator e;
  e.config.max_warp_instructions = 1000;
  EXPECT_TRUE(
      faults_with(e.run(kernel("LOOP:\nbra LOOP;")), FaultKind::kBudget, "more than 1000 warp instructions"));
  e.config.max_warp_instructions = 0;
  e.config.max_idle_instructions = 5000;
  EXPECT_TRUE(faults_with(e.run(kernel("LOOP:\nbra LOOP;")), FaultKind::kDeadlock,
                          "no progress in 5000 warp instructions: every warp that can run only polls"));
  EXPECT_TRUE(faults_with(e.run(kernel("trap;")), FaultKind::kTrap, "trap executed"));
}

TEST(Control, PrintfWritesToTheReport) {
  Emulator e;
  e.config.block = {1, 1, 1};
  e.run(kernel(
      R"(.local .align 8 .b8 args[16];
  .reg .b64 %SP;
  mov.u64 %rd1, args;
  mov.u32 %r1, 42;
  st.local.u32 [%rd1], %r1;
  mov.f64 %d1, 0d3FF8000000000000;
  st.local.f64 [%rd1+8], %d1;
  cvta.local.u64 %rd2, %rd1;
  mov.u64 %rd3, fmt;
  cvta.global.u64 %rd4, %rd3;
  {
  .param .b64 a;
  .param .b64 b;
  .param .b32 v;
  st.param.b64 [a], %rd4;
  st.param.b64 [b], %rd2;
  call.uni (v), vprintf, (a, b);
  ld.param.b32 %r2, [v];
  })",
      "",
      ".extern .func (.param .b32 v) vprintf(.param .b64 a, .param .b64 b);\n.global .align 1 .b8 fmt[10] = "
      "{37, 100, 32, 37, 46, 50, 102, 10, 0, 0};\n"));
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.report.output, "42 1.50\n");
}

TEST(Control, SameSeedSameRun) {
  std::string text = kernel(R"(ld.param.u64 %rd1, [p0];
  atom.global.add.u32 %r1, [%rd1], 1;
  mov.u32 %r2, %ctaid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd2, %rd2, %rd1;
  st.global.u32 [%rd2+4], %r1;)");
  auto order = [&](uint64_t seed) {
    Emulator e;
    e.config.grid = {64, 1, 1};
    e.config.block = {1, 1, 1};
    e.config.seed = seed;
    uint64_t data = e.upload(std::vector<uint32_t>(65, 0));
    e.run(text, {data});
    EXPECT_TRUE(e.report.ok()) << e.report.fault.text();
    return e.download<uint32_t>(data, 65);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

}  // namespace
}  // namespace mla::emu

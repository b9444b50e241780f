// SPDX-License-Identifier: Apache-2.0
//
// Races and missing fences: each must be found with every seed, whatever the timing, and the repaired
// program must run clean.
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

const std::string kShared = ".shared .align 1024 .b8 buffer[8192];\n.shared .align 8 .b64 bar;\n";
const std::string kStart = R"(mov.u32 %r1, %tid.x;
  shr.u32 %r5, %r1, 5;
  mov.u32 %r2, bar;
  mov.u32 %r3, buffer;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  bar.sync 0;
  ld.param.u64 %rd1, [p0];
  setp.eq.u32 %p2, %r5, 0;
)";
const std::string kWait = R"(WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra WAIT;
)";

class Race : public ::testing::Test {
 protected:
  Emulator e;
  uint64_t data = 0;
  void SetUp() override {
    e.config.block = {64, 1, 1};
    data = e.upload(std::vector<uint32_t>(2048, 1));
  }
  void expect_fault(const std::string& body, FaultKind kind, const std::string& part) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      e.config.seed = seed;
      e.run(kernel(kStart + body, "", kShared), {data});
      ASSERT_TRUE(faults_with(e.report, kind, part)) << "seed " << seed;
    }
  }
  void expect_clean(const std::string& body) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      e.config.seed = seed;
      e.run(kernel(kStart + body, "", kShared), {data});
      ASSERT_TRUE(e.report.ok()) << "seed " << seed << ": " << e.report.fault.text();
    }
  }
};

TEST_F(Race, WriteWrite) {
  expect_fault("st.shared.u32 [%r3], %r1;", FaultKind::kRace,
               "write of shared address 0x400 (buffer + 0) races with the write by warp");
  expect_clean("@%p2 st.shared.u32 [%r3], %r1;\nbar.sync 0;\n@!%p2 st.shared.u32 [%r3], %r1;");
}

TEST_F(Race, WriteReadInAnyOrder) {
  const std::string part = "of shared address 0x400 (buffer + 0) races with the";
  expect_fault(
      "@%p1 st.shared.u32 [%r3], 1;\nbar.sync 0;\n@%p2 st.shared.u32 [%r3], 2;\n@!%p2 ld.shared.u32 %r4, "
      "[%r3];",
      FaultKind::kRace, part);
  expect_clean(
      "@%p1 st.shared.u32 [%r3], 1;\nbar.sync 0;\n@!%p2 ld.shared.u32 %r4, [%r3];\nbar.sync 0;\n@%p2 "
      "st.shared.u32 [%r3], 2;");
}

TEST_F(Race, NeighboursInOneGranuleAreNoRace) {
  expect_clean(
      "shl.b32 %r6, %r5, 2;\nadd.u32 %r6, %r6, %r3;\nst.shared.u32 [%r6], 1;\nld.shared.u32 %r7, [%r6];");
}

TEST_F(Race, AtomicsAreNoRaceButPlainAgainstAtomicIs) {
  expect_clean("@%p1 st.shared.u32 [%r3], 0;\nbar.sync 0;\natom.shared.add.u32 %r4, [%r3], 1;");
  expect_fault(
      "@%p1 st.shared.u32 [%r3], 0;\nbar.sync 0;\n@%p2 atom.shared.add.u32 %r4, [%r3], 1;\n@!%p2 "
      "st.shared.u32 [%r3], 1;",
      FaultKind::kRace, "of shared address 0x400 (buffer + 0) races with the write by warp");
}

TEST_F(Race, WrongNamedBarrierDoesNotOrder) {
  expect_fault(R"(@%p2 st.shared.u32 [%r3], 1;
  @%p2 bar.sync 1, 32;
  @!%p2 bar.sync 2, 32;
  @!%p2 st.shared.u32 [%r3], 2;)",
               FaultKind::kRace, "write of shared address 0x400");
}

TEST_F(Race, FlagInSharedMemory) {
  const std::string reader = R"(
  POLL:
  ld.ACQ.shared.u32 %r4, [%r3+16];
  setp.eq.u32 %p4, %r4, 0;
  @%p4 bra POLL;
  ld.shared.u32 %r6, [%r3];
  END:)";
  auto body = [&](std::string release, std::string acquire) {
    std::string text =
        "@%p1 st.shared.u32 [%r3+16], 0;\nbar.sync 0;\n@!%p2 bra POLL;\n@%p1 st.shared.u32 [%r3], 5;\n@%p1 "
        "st." +
        release + ".shared.u32 [%r3+16], 1;\nbra END;" + reader;
    text.replace(text.find("ACQ"), 3, acquire);
    return text;
  };
  expect_clean(body("release.cta", "acquire.cta"));
  expect_fault(body("relaxed.cta", "acquire.cta"), FaultKind::kRace,
               "read of shared address 0x400 (buffer + 0) races with the write by warp 0");
  expect_fault(body("release.cta", "relaxed.cta"), FaultKind::kRace,
               "read of shared address 0x400 (buffer + 0) races with the write by warp 0");
}

TEST_F(Race, ReadBeforeTheCopyIsAwaited) {
  const std::string load = R"(@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 256, [%r2];
)";
  expect_fault(load + "@%p2 ld.shared.u32 %r4, [%r3+64];\n" + kWait, FaultKind::kRace,
               "read of shared address 0x440 (buffer + 64) races with the write by the asynchronous copy of "
               "PTX line 24");
  expect_clean(load + kWait + "ld.shared.u32 %r4, [%r3+64];");
}

TEST_F(Race, ExpectTooFewBytes) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    e.config.seed = seed;
    e.run(kernel(kStart + R"(@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 4096, [%r2];
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+4096], [%rd1+4096], 4096, [%r2];
)" + kWait + "ld.shared.u32 %r4, [%r3+4096];\nld.shared.u32 %r4, [%r3];",
                 "", kShared),
          {data});
    EXPECT_FALSE(e.report.ok());
    EXPECT_TRUE(e.report.fault.kind == FaultKind::kRace || e.report.fault.kind == FaultKind::kDeadlock)
        << e.report.fault.text();
  }
}

TEST_F(Race, CopyOverwritesWhatIsStillRead) {
  const std::string load = R"(
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 256, [%r2];
)" + kWait;
  expect_fault(
      "@%p1 st.shared.u32 [%r3], 1;\n@%p1 fence.proxy.async;\nbar.sync 0;\n@!%p2 ld.shared.u32 %r4, [%r3];" +
          load,
      FaultKind::kRace, "races with the");
  expect_clean(
      "@%p1 st.shared.u32 [%r3], 1;\n@%p1 fence.proxy.async;\nbar.sync 0;\n@!%p2 ld.shared.u32 %r4, "
      "[%r3];\nbar.sync 0;" +
      load);
}

TEST_F(Race, MissingProxyFence) {
  const std::string store = R"(
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 128;
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;)";
  const std::string write = "shl.b32 %r6, %r1, 2;\nadd.u32 %r6, %r6, %r3;\nst.shared.u32 [%r6], %r1;\n";
  expect_fault(write + "bar.sync 0;" + store, FaultKind::kProxy,
               "asynchronous copy reads shared address 0x400 (buffer + 0), which warp 0 wrote with an "
               "ordinary store; there is no "
               "fence.proxy.async between them");
  expect_clean(write + "fence.proxy.async.shared::cta;\nbar.sync 0;" + store);
  // A fence before the store does not help.
  expect_fault("fence.proxy.async.shared::cta;\n" + write + "bar.sync 0;" + store, FaultKind::kProxy,
               "there is no fence.proxy.async");
}

TEST_F(Race, SharedMemoryReusedBeforeTheStoreHasRead) {
  auto body = [](const std::string& wait) {
    return "@%p1 st.shared.v4.u32 [%r3], {%r1, %r1, %r1, %r1};\n@%p1 fence.proxy.async;\n@%p1 "
           "cp.async.bulk.global.shared::cta.bulk_group [%rd1], "
           "[%r3], 16;\n@%p1 cp.async.bulk.commit_group;\n" +
           wait + "@%p1 st.shared.u32 [%r3], 7;\n@%p1 cp.async.bulk.wait_group 0;";
  };
  expect_fault(body(""), FaultKind::kRace, "races with the read by the asynchronous copy of PTX line");
  expect_clean(body("@%p1 cp.async.bulk.wait_group.read 0;\n"));
}

TEST_F(Race, WgmmaOfOrdinaryStoresNeedsAProxyFence) {
  e.config.block = {128, 1, 1};
  // 64 rows of A and 8 of B, 16 bf16 each, without swizzle: all of the first 4 KiB is written.
  auto text = [](const std::string& fence, const std::string& wait) {
    return kernel(R"(mov.u32 %r1, %tid.x;
  mov.u32 %r3, buffer;
  shl.b32 %r4, %r1, 5;
  add.u32 %r4, %r4, %r3;
  mov.u32 %r9, 0;
  st.shared.v4.u32 [%r4], {%r9, %r9, %r9, %r9};
  st.shared.v4.u32 [%r4+16], {%r9, %r9, %r9, %r9};
)" + fence + R"(
  bar.sync 0;
  mov.u64 %rd1, 0x0000001000080040;
  setp.ne.u32 %p1, %r3, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd1, %rd1, %p1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
)" + wait + R"(
  bar.sync 0;
  st.shared.u32 [%r4], %r9;)",
                  "", kShared, "sm_90a");
  };
  const std::string fence = "fence.proxy.async;", wait = "wgmma.wait_group.sync.aligned 0;";
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    e.config.seed = seed;
    EXPECT_TRUE(
        faults_with(e.run(text("", wait)), FaultKind::kProxy, "there is no fence.proxy.async between them"));
    EXPECT_TRUE(faults_with(e.run(text(fence, "")), FaultKind::kRace,
                            "races with the read by the asynchronous copy"));
    EXPECT_TRUE(e.run(text(fence, wait)).ok()) << e.report.fault.text();
  }
}

// ---- global memory, between CTAs: the last arriver reads what the others wrote.

std::string last_arriver(const std::string& before, const std::string& atom, const std::string& after) {
  return kernel(R"(mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, flag;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  mad.lo.u32 %r4, %r2, 64, %r1;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd4, %rd1, %rd3;
  st.global.u32 [%rd4], %r4;
)" + before + R"(
  setp.eq.u32 %p1, %r1, 0;
  @!%p1 bra WAIT;
)" + atom + R"(
  st.shared.u32 [%r3], %r5;
  WAIT:
  bar.sync 0;
  ld.shared.u32 %r5, [%r3];
)" + after + R"(
  setp.ne.u32 %p2, %r5, 2;
  @%p2 exit;
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd1, %rd3;
  ld.global.u32 %r6, [%rd4];
  ld.global.u32 %r7, [%rd4+256];
  ld.global.u32 %r8, [%rd4+512];)",
                "", ".shared .align 4 .b32 flag;\n");
}

class GlobalRace : public ::testing::Test {
 protected:
  ::testing::AssertionResult run(const std::string& text, uint64_t seed) {
    Emulator e;
    e.config.grid = {3, 1, 1};
    e.config.block = {64, 1, 1};
    e.config.seed = seed;
    uint64_t data = *e.memory.allocate(768), counter = e.upload<uint32_t>({0});
    e.run(text, {data, counter});
    if (e.report.ok()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << e.report.fault.text();
  }
  void expect_race(const std::string& text, const std::string& part) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      auto result = run(text, seed);
      ASSERT_FALSE(result) << "seed " << seed;
      ASSERT_NE(std::string(result.message()).find(part), std::string::npos) << result.message();
    }
  }
};

TEST_F(GlobalRace, AcquireReleaseCounter) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(
        run(last_arriver("bar.sync 0;", "atom.add.acq_rel.gpu.global.u32 %r5, [%rd2], 1;", ""), seed));
  }
}

TEST_F(GlobalRace, FencesAroundARelaxedCounter) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(run(
        last_arriver(
            "bar.sync 0;",
            "fence.acq_rel.gpu;\natom.add.relaxed.gpu.global.u32 %r5, [%rd2], 1;\nfence.acq_rel.gpu;", ""),
        seed));
    EXPECT_TRUE(run(last_arriver("membar.gl;\nbar.sync 0;",
                                 "membar.gl;\natom.global.add.u32 %r5, [%rd2], 1;\nmembar.gl;", ""),
                    seed));
  }
}

TEST_F(GlobalRace, RelaxedCounterIsARace) {
  expect_race(last_arriver("bar.sync 0;", "atom.add.relaxed.gpu.global.u32 %r5, [%rd2], 1;", ""),
              "no barrier or release/acquire orders them");
}

TEST_F(GlobalRace, MissingBarrierBeforeTheCounterIsARace) {
  // Only warp 0's writes are released.
  expect_race(last_arriver("", "atom.add.acq_rel.gpu.global.u32 %r5, [%rd2], 1;", ""),
              "races with the write by warp 1 of CTA number");
}

}  // namespace
}  // namespace mla::emu

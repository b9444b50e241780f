// SPDX-License-Identifier: Apache-2.0
//
// Bulk copies and global memory: when a copy's writes and reads are known to be done, which proxy fence
// covers what, and checks as warnings.
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

class CopyRace : public ::testing::Test {
 protected:
  Emulator e;
  uint64_t data = 0, flag = 0;

  // One thread in each CTA; p0: 64 bytes of data, p1: a flag.
  const Report& run(const std::string& body, uint32_t ctas = 2) {
    e.config.grid = {ctas, 1, 1};
    e.config.block = {1, 1, 1};
    data = e.upload(std::vector<uint32_t>(16, 7));
    flag = e.upload<uint32_t>({0});
    return e.run(
        kernel("ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, "
               "s;\nmov.u32 %r3, bar;\nmov.u32 %r4, 5;\nsetp.ne.u32 %p1, %r1, 0;\n" +
                   body,
               "", ".shared .align 16 .b8 s[64];\n.shared .align 8 .b64 bar;\n"),
        {data, flag});
  }

  void expect(const std::string& body, FaultKind kind, const std::string& part, uint32_t ctas = 2) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      e.config.seed = seed;
      run(body, ctas);
      if (kind == FaultKind::kNone) {
        ASSERT_TRUE(e.report.ok()) << "seed " << seed << ": " << e.report.fault.text();
      } else {
        ASSERT_TRUE(faults_with(e.report, kind, part)) << "seed " << seed;
      }
    }
  }
};

const std::string kFill = "st.shared.v4.b32 [%r2], {%r4, %r4, %r4, %r4};\n";
const std::string kStore =
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 16;\ncp.async.bulk.commit_group;\n";
const std::string kPoll =
    "POLL:\nld.acquire.gpu.global.u32 %r5, [%rd2];\nsetp.eq.u32 %p2, %r5, 0;\n@%p2 bra POLL;\n";

// CTA 0 stores by a copy and raises the flag; CTA 1 reads.
std::string store_and_tell(const std::string& wait) {
  return "@%p1 bra POLL;\n" + kFill + "fence.proxy.async.shared::cta;\n" + kStore + wait +
         "\nst.release.gpu.global.u32 [%rd2], 1;\ncp.async.bulk.wait_group 0;\nret;\n" + kPoll +
         "ld.global.u32 %r6, [%rd1];";
}

TEST_F(CopyRace, WritesOfABulkStoreAreDoneWithTheWholeWait) {
  expect(store_and_tell("cp.async.bulk.wait_group 0;"), FaultKind::kNone, "");
  const std::string late =
      "races with the write by an asynchronous copy of CTA number 0 of the grid, which is not known to be "
      "complete";
  expect(store_and_tell("cp.async.bulk.wait_group.read 0;"), FaultKind::kRace, late);
  expect(store_and_tell(""), FaultKind::kRace, late);
  // A later whole wait covers what a wait for reading has retired.
  expect(store_and_tell("cp.async.bulk.wait_group.read 0;\ncp.async.bulk.wait_group 0;"), FaultKind::kNone,
         "");
  // The issuer itself has to wait, too.
  expect(kFill + "fence.proxy.async;\n" + kStore + "ld.global.u32 %r6, [%rd1];\ncp.async.bulk.wait_group 0;",
         FaultKind::kRace, late, 1);
  expect(kFill + "fence.proxy.async;\n" + kStore + "cp.async.bulk.wait_group 0;\nld.global.u32 %r6, [%rd1];",
         FaultKind::kNone, "", 1);
}

// CTA 0 loads by a copy and raises the flag; CTA 1 overwrites the source.
TEST_F(CopyRace, ReadsOfABulkLoadAreRemembered) {
  const auto text = [](const std::string& before, const std::string& after) {
    return "@%p1 bra POLL;\nmbarrier.init.shared::cta.b64 [%r3], 1;\nfence.proxy.async;\n"
           "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;\n"
           "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 16, [%r3];\n" +
           before + "st.release.gpu.global.u32 [%rd2], 1;\n" + after + "ret;\n" + kPoll +
           "st.global.u32 [%rd1], 9;";
  };
  const std::string wait =
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;\n@!%p3 bra WAIT;\n";
  expect(text(wait, ""), FaultKind::kNone, "");
  expect(text("", wait), FaultKind::kRace, "races with the read by an asynchronous copy of CTA number 0");
}

TEST_F(CopyRace, StrongReadsAreRemembered) {
  expect("@%p1 bra OTHER;\nld.relaxed.gpu.global.u32 %r5, [%rd1];\nret;\nOTHER:\nst.global.u32 [%rd1], 9;",
         FaultKind::kRace, "races with the");
}

TEST_F(CopyRace, ProxyFencesOfOneStateSpace) {
  const std::string end = kStore + "cp.async.bulk.wait_group 0;";
  const std::string reads = "asynchronous copy reads shared address";
  expect(kFill + "fence.proxy.async.shared::cta;\n" + end, FaultKind::kNone, "", 1);
  expect(kFill + "fence.proxy.async.global;\n" + end, FaultKind::kProxy, reads, 1);
  // An ordinary store, then a copy over it.
  const std::string store = "st.global.u32 [%rd1], 1;\n";
  expect(kFill + store + "fence.proxy.async;\n" + end, FaultKind::kNone, "", 1);
  expect(kFill + store + "fence.proxy.async.shared::cta;\nfence.proxy.async.global;\n" + end,
         FaultKind::kNone, "", 1);
  expect(kFill + store + "fence.proxy.async.shared::cta;\n" + end, FaultKind::kProxy,
         "wrote with an ordinary store; there is no fence.proxy.async between them", 1);
}

TEST_F(CopyRace, AFindingCanBeAWarning) {
  e.config.checks[Check::kProxyFences] = CheckMode::kWarn;
  run(kFill + kStore + kStore + "cp.async.bulk.wait_group 0;", 1);
  EXPECT_TRUE(faults_with(e.report, FaultKind::kRace, "asynchronous write of global address"));
  e.config.checks[Check::kCopyRaces] = CheckMode::kOff;
  run(kFill + kStore + "cp.async.bulk.wait_group 0;\n" + kStore + "cp.async.bulk.wait_group 0;", 1);
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  ASSERT_EQ(e.report.warnings.size(), 2u);
  EXPECT_EQ(e.report.warnings[0].count, 1u);
  EXPECT_NE(e.report.warnings[0].text.find("missing proxy fence in kernel k"), std::string::npos);
  e.config.checks[Check::kProxyFences] = CheckMode::kOff;
  run(kFill + kStore + "cp.async.bulk.wait_group 0;", 1);
  EXPECT_TRUE(e.report.ok());
  EXPECT_TRUE(e.report.warnings.empty());
}

TEST_F(CopyRace, BarrierMisuseCanBeAWarning) {
  e.config.checks[Check::kMbarrierCounts] = CheckMode::kWarn;
  run("mbarrier.init.shared::cta.b64 [%r3], 1;\nmbarrier.arrive.shared::cta.b64 _, [%r3], 3;", 1);
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  ASSERT_EQ(e.report.warnings.size(), 1u);
  EXPECT_NE(e.report.warnings[0].text.find("arrival of 3 at the mbarrier"), std::string::npos);
}

}  // namespace
}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

const std::string kShared = ".shared .align 16 .b8 buffer[1024];\n.shared .align 8 .b64 bar;\n";

// Warp 0 initialises the barrier, then all meet.
std::string with_barrier(const std::string& count, const std::string& body) {
  return kernel(
      "mov.u32 %r1, %tid.x;\nmov.u32 %r2, bar;\nmov.u32 %r3, buffer;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 "
      "mbarrier.init.shared::cta.b64 [%r2], " +
          count + ";\nbar.sync 0;\nshr.u32 %r4, %r1, 5;\nld.param.u64 %rd1, [p0];\n" + body,
      "", kShared);
}

TEST(Barrier, ProducerAndConsumerWarps) {
  Emulator e;
  e.config.block = {64, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(32, 0));
  e.run_seeds(with_barrier("32", R"(setp.eq.u32 %p2, %r4, 0;
  and.b32 %r5, %r1, 31;
  shl.b32 %r6, %r5, 2;
  add.u32 %r7, %r3, %r6;
  @!%p2 bra CONSUMER;
  st.shared.u32 [%r7], %r5;
  mbarrier.arrive.shared::cta.b64 %rd2, [%r2];
  bra END;
  CONSUMER:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra CONSUMER;
  ld.shared.u32 %r8, [%r7];
  cvt.u64.u32 %rd3, %r6;
  add.u64 %rd3, %rd3, %rd1;
  st.global.u32 [%rd3], %r8;
  END:
  ret;)"),
              {out}, 20);
  EXPECT_EQ(e.download<uint32_t>(out, 32)[31], 31u);
}

TEST(Barrier, StateTokenAndPendingCount) {
  Emulator e;
  e.config.block = {1, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(4, 9));
  e.run(with_barrier("2", R"(mbarrier.arrive.shared::cta.b64 %rd2, [%r2];
  mbarrier.pending_count.b64 %r5, %rd2;
  mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd2;
  selp.u32 %r6, 1, 0, %p2;
  mbarrier.arrive.shared::cta.b64 %rd3, [%r2];
  mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd2;
  selp.u32 %r7, 1, 0, %p2;
  mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 1;
  selp.u32 %r8, 1, 0, %p2;
  st.global.v4.u32 [%rd1], {%r5, %r6, %r7, %r8};
  mbarrier.inval.shared::cta.b64 [%r2];
  mbarrier.init.shared::cta.b64 [%r2], 1;)"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(out, 4), (std::vector<uint32_t>{2, 0, 1, 0}));
}

TEST(Barrier, DeadlockListsWhoWaitsForWhat) {
  Emulator e;
  e.config.block = {64, 1, 1};
  e.run(with_barrier("3", R"(setp.eq.u32 %p2, %r4, 1;
  @%p2 bra OTHER;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
  WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra WAIT;
  ret;
  OTHER:
  barrier.sync 2, 64;)"));
  EXPECT_EQ(e.report.fault.kind, FaultKind::kDeadlock);
  const std::string& m = e.report.fault.message;
  EXPECT_NE(m.find("no warp can run and no asynchronous copy is in flight; 2 waiting:"), std::string::npos)
      << m;
  EXPECT_NE(m.find("CTA (0, 0, 0) rank 0 warp 0, PTX line 26: waits for parity 0 of the mbarrier at shared "
                   "address 0x800 (bar + "
                   "0) (initialised by PTX line 18): in phase 0, 2 of 3 arrivals and 128 bytes are missing"),
            std::string::npos)
      << m;
  EXPECT_NE(m.find("rank 0 warp 1, PTX line 30: waits at barrier 2, 32 of 64 threads arrived"),
            std::string::npos)
      << m;
}

TEST(Barrier, Misuse) {
  Emulator e;
  e.config.block = {1, 1, 1};
  EXPECT_TRUE(faults_with(
      e.run(with_barrier("1", "mbarrier.arrive.shared::cta.b64 _, [%r2], 2;")), FaultKind::kBarrier,
      "arrival of 2 at the mbarrier at shared address 0x800 (bar + 0), but its phase 0 (of 1 arrivals) waits "
      "for 1 more and 0 bytes"));
  EXPECT_TRUE(faults_with(
      e.run(with_barrier("1", "mbarrier.init.shared::cta.b64 [%r2], 1;")), FaultKind::kBarrier,
      "where an mbarrier is in use (initialised by PTX line 18); mbarrier.inval must come first"));
  EXPECT_TRUE(
      faults_with(e.run(with_barrier("1", "mbarrier.arrive.shared::cta.b64 _, [%r3];")), FaultKind::kBarrier,
                  "there is no mbarrier at shared address 0x400 (buffer + 0): it was not initialised"));
  EXPECT_TRUE(
      faults_with(e.run(with_barrier("1", "st.shared.u32 [%r2], 0;")), FaultKind::kBarrier,
                  "ordinary write of the mbarrier at shared address 0x800 (bar + 0), which is in use"));
  EXPECT_TRUE(faults_with(e.run(with_barrier("1", "mbarrier.expect_tx.shared::cta.b64 [%r2], 1048576;")),
                          FaultKind::kBarrier, "leaves its range: 1048576 bytes"));
  EXPECT_TRUE(
      faults_with(e.run(with_barrier("1", "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 2;")),
                  FaultKind::kBarrier, "phase parity 2 is not 0 or 1"));
  EXPECT_TRUE(faults_with(e.run(with_barrier("1", "bar.sync 16;")), FaultKind::kBarrier,
                          "barrier number 16 is not in 0 to 15"));
  EXPECT_TRUE(faults_with(e.run(with_barrier("1", "bar.sync 1, 48;")), FaultKind::kBarrier,
                          "thread count 48 of barrier 1 is not a positive multiple of 32"));
  e.config.block = {96, 1, 1};
  EXPECT_TRUE(faults_with(e.run(with_barrier("1", R"(setp.eq.u32 %p2, %r4, 1;
  @%p2 bar.sync 3, 64;
  @!%p2 bar.sync 3, 96;)")),
                          FaultKind::kBarrier, "barrier 3 is used with"));
}

TEST(Barrier, UseBeforeInitialisationIsOrdered) {
  Emulator e;
  e.config.block = {64, 1, 1};
  int caught = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    e.config.seed = seed;
    e.run(kernel(R"(mov.u32 %r1, %tid.x;
  mov.u32 %r2, bar;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  setp.eq.u32 %p2, %r1, 32;
  @%p2 mbarrier.arrive.shared::cta.b64 _, [%r2];)",
                 "", kShared));
    EXPECT_EQ(e.report.fault.kind, FaultKind::kBarrier) << e.report.fault.text();
    caught += e.report.fault.message.find(
                  "is not ordered after its initialisation by warp 0 (PTX line 17)") != std::string::npos;
  }
  EXPECT_GT(caught, 0);
}

TEST(Barrier, NamedBarrierArriveAndSync) {
  Emulator e;
  e.config.block = {96, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(1, 0));
  e.run_seeds(with_barrier("1", R"(setp.ne.u32 %p2, %r4, 0;
  @%p2 bra ARRIVE;
  bar.sync 1, 96;
  ld.shared.u32 %r5, [%r3];
  ld.shared.u32 %r6, [%r3+4];
  add.u32 %r5, %r5, %r6;
  @%p1 st.global.u32 [%rd1], %r5;
  ret;
  ARRIVE:
  and.b32 %r5, %r1, 31;
  setp.eq.u32 %p3, %r5, 0;
  shl.b32 %r6, %r4, 2;
  add.u32 %r6, %r6, %r3;
  @%p3 st.shared.u32 [%r6+-4], %r4;
  bar.arrive 1, 96;)"),
              {out}, 10);
  EXPECT_EQ(e.download<uint32_t>(out, 1)[0], 3u);
}

TEST(Barrier, ReductionBarrier) {
  Emulator e;
  e.config.block = {64, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(2, 0));
  e.run(kernel(R"(mov.u32 %r1, %tid.x;
  setp.gt.u32 %p1, %r1, 40;
  bar.red.popc.u32 %r2, 0, %p1;
  bar.red.or.pred %p2, 0, %p1;
  selp.u32 %r3, 1, 0, %p2;
  ld.param.u64 %rd1, [p0];
  setp.eq.u32 %p3, %r1, 0;
  @%p3 st.global.v2.u32 [%rd1], {%r2, %r3};)"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(out, 2), (std::vector<uint32_t>{23, 1}));
}

// CTA 0 writes into the shared memory of CTA 1 and arrives there.
std::string remote(const std::string& end) {
  return kernel(R"(mov.u32 %r1, %cluster_ctarank;
  mov.u32 %r2, bar;
  mov.u32 %r3, buffer;
  mov.u32 %r9, %tid.x;
  setp.eq.u32 %p2, %r9, 0;
  @%p2 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p2 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.acquire.aligned;
  setp.eq.u32 %p1, %r1, 1;
  @%p1 bra RECEIVE;
  mapa.shared::cluster.u32 %r4, %r3, 1;
  mapa.shared::cluster.u32 %r5, %r2, 1;
  @%p2 st.shared::cluster.u32 [%r4], 55;
  @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
  bra END;
  RECEIVE:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra RECEIVE;
  ld.shared.u32 %r6, [%r3];
  ld.param.u64 %rd1, [p0];
  @%p2 st.global.u32 [%rd1], %r6;
  END:
)" + end,
                "", kShared);
}

TEST(Barrier, RemoteStoreAndArrive) {
  Emulator e;
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(1, 0));
  e.run_seeds(remote("barrier.cluster.arrive;\nbarrier.cluster.wait;"), {out}, 20);
  EXPECT_EQ(e.download<uint32_t>(out, 1)[0], 55u);
}

// The manual's own example: mapa.u64 gives a generic address, mbarrier.arrive takes it.
TEST(Barrier, RemoteArriveByGenericAddress) {
  Emulator e;
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  const auto text = [](const std::string& arrive) {
    return kernel(R"(mov.u32 %r1, %cluster_ctarank;
  mov.u32 %r2, bar;
  mov.u32 %r4, %tid.x;
  setp.eq.u32 %p1, %r4, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 32;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.eq.u32 %p2, %r1, 0;
  @%p2 bra WAIT;
  cvt.u64.u32 %rd1, %r2;
  cvta.shared.u64 %rd1, %rd1;
  mapa.u64 %rd2, %rd1, 0;
)" + arrive + R"(
  bra END;
  WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  @!%p3 bra WAIT;
  END:
  barrier.cluster.arrive;
  barrier.cluster.wait;)",
                  "", kShared);
  };
  e.run_seeds(text("mbarrier.arrive.release.cluster.b64 _, [%rd2];"), {}, 10);
  e.run_seeds(text("mbarrier.arrive.expect_tx.release.cluster.b64 _, [%rd2], 0;"), {}, 10);
  EXPECT_TRUE(
      faults_with(e.run(text("mbarrier.arrive.release.cluster.b64 %rd3, [%rd2];")), FaultKind::kBarrier,
                  "the mbarrier lies in the CTA with cluster rank 0: an arrival there gives no state, "
                  "the destination must be _"));
}

TEST(Barrier, RemoteAccessToAnExitedCta) {
  Emulator e;
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  int caught = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    e.config.seed = seed;
    e.run(kernel(R"(mov.u32 %r1, %cluster_ctarank;
  mov.u32 %r3, buffer;
  setp.eq.u32 %p1, %r1, 1;
  @%p1 exit;
  mapa.shared::cluster.u32 %r4, %r3, 1;
  st.shared::cluster.u32 [%r4], 55;)",
                 "", kShared));
    if (e.report.ok()) continue;
    ++caught;
    EXPECT_TRUE(faults_with(e.report, FaultKind::kClusterExit,
                            "access to shared memory of the CTA with cluster rank 1, which has exited: keep "
                            "it alive with a cluster "
                            "barrier"));
  }
  EXPECT_GT(caught, 0);
}

TEST(Barrier, ClusterBarrierOrder) {
  Emulator e;
  EXPECT_TRUE(faults_with(e.run(kernel("barrier.cluster.wait.aligned;")), FaultKind::kBarrier,
                          "barrier.cluster.wait without barrier.cluster.arrive"));
  e.config.grid = {2, 1, 1};
  e.config.cluster = {2, 1, 1};
  EXPECT_TRUE(faults_with(e.run(kernel(R"(mov.u32 %r1, %cluster_ctarank;
  setp.eq.u32 %p1, %r1, 1;
  LOOP:
  @%p1 bra LOOP2;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
  LOOP2:
  bra LOOP2;)")),
                          FaultKind::kDeadlock, "waits at the cluster barrier, 1 of 2 warps arrived"));
}

TEST(Barrier, RegisterPool) {
  Emulator e;
  e.config.block = {64, 1, 1};
  e.config.registers_per_thread = 64;
  std::string text = R"(mov.u32 %r1, %tid.x;
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra OTHER;
  setmaxnreg.inc.sync.aligned.u32 MORE;
  ret;
  OTHER:
  setmaxnreg.dec.sync.aligned.u32 40;
  bar.sync 1, 32;
  WAIT:)";
  auto with = [&](const std::string& more) {
    std::string copy = text;
    copy.replace(copy.find("MORE"), 4, more);
    return kernel(copy);
  };
  EXPECT_TRUE(e.run(with("88")).ok()) << e.report.fault.text();
  e.run(kernel(R"(setmaxnreg.inc.sync.aligned.u32 72;)"));
  EXPECT_TRUE(faults_with(
      e.report, FaultKind::kRegisters,
      "setmaxnreg.inc waits for 72 registers a thread, it has 64 and the pool of the CTA has 0 a warp left"));
  EXPECT_TRUE(faults_with(e.run(kernel("setmaxnreg.dec.sync.aligned.u32 72;")), FaultKind::kRegisters,
                          "setmaxnreg.dec to 72 registers, but the warp has 64"));
}

}  // namespace
}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Instructions whose lanes act together, and vectors of special registers.
#include <bit>

#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

const char* const kStore =
    "\nld.param.u64 %rd1, [p0];\nmov.u32 %r90, %tid.x;\nmul.wide.u32 %rd2, %r90, 4;\nadd.u64 %rd1, %rd1, "
    "%rd2;\nst.global.u32 [%rd1], %r9;\nret;";

std::vector<uint32_t> per_lane(const std::string& body) {
  Emulator e;
  uint64_t out = *e.memory.allocate(32 * 4);
  e.run(kernel("mov.u32 %r1, %laneid;\n" + body + kStore), {out});
  EXPECT_TRUE(e.report.ok()) << e.report.fault.text();
  return e.download<uint32_t>(out, 32);
}

// %r5: the member mask of the lane's quad.
const std::string kQuad =
    "and.b32 %r4, %r1, 28;\nmov.u32 %r5, 15;\nshl.b32 %r5, %r5, %r4;\nmul.lo.u32 %r6, %r1, %r1;\n";

TEST(Warp, DisjointMemberMasks) {
  auto r = per_lane(kQuad + "shfl.sync.idx.b32 %r9, %r6, 1, 0x1c1f, %r5;");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], (i / 4 * 4 + 1) * (i / 4 * 4 + 1)) << i;
  r = per_lane(kQuad + "setp.gt.u32 %p1, %r1, 5;\nvote.sync.ballot.b32 %r9, %p1, %r5;");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], ~0x3fu & (15u << i / 4 * 4)) << i;
  r = per_lane(kQuad + "redux.sync.add.u32 %r9, %r1, %r5;");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], 4 * (i / 4 * 4) + 6) << i;
  r = per_lane(kQuad + "shr.u32 %r7, %r1, 1;\nmatch.any.sync.b32 %r9, %r7, %r5;");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], 3u << i / 2 * 2) << i;
  r = per_lane(kQuad + "elect.sync %r9|%p1, %r5;");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], i / 4 * 4) << i;
  r = per_lane(kQuad + "mov.u32 %r9, 7;\nbar.warp.sync %r5;\nbar.sync 0;");
  EXPECT_EQ(r[31], 7u);
}

// Half of each quad takes a detour: its set waits for it, the others do not.
TEST(Warp, DisjointMemberMasksInDivergentCode) {
  auto r = per_lane(kQuad + R"(mov.u32 %r7, 0;
  setp.ne.u32 %p1, %r1, 6;
  @%p1 bra MEET;
  add.u32 %r7, %r7, 100;
  MEET:
  redux.sync.add.u32 %r9, %r7, %r5;
  bar.sync 0;)");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(r[i], i / 4 == 1 ? 100u : 0u) << i;
}

TEST(Warp, MemberMasksThatDoNotFit) {
  Emulator e;
  EXPECT_TRUE(faults_with(e.run(kernel("mov.u32 %r1, %laneid;\nsetp.lt.u32 %p1, %r1, 16;\nselp.b32 %r2, "
                                       "0xffff, 0xffffffff, %p1;\nbar.warp.sync %r2;")),
                          FaultKind::kDivergence, "member mask 0x0000ffff in lane 0, 0xffffffff in lane 16"));
  EXPECT_TRUE(faults_with(e.run(kernel("bar.warp.sync 0xffff;")), FaultKind::kDivergence,
                          "lane 16 executes it, but is not in its member mask 0x0000ffff"));
  EXPECT_TRUE(faults_with(
      e.run(kernel("mov.u32 %r1, %laneid;\n" + kQuad + "shfl.sync.idx.b32 %r9, %r6, 9, 0x1f, %r5;")),
      FaultKind::kDivergence, "shuffle reads lane 9, which is not in its member mask"));
  EXPECT_TRUE(faults_with(e.run(kernel("mov.u32 %r1, %laneid;\nsetp.lt.u32 %p1, %r1, 4;\n@%p1 bar.warp.sync "
                                       "0xff;")),
                          FaultKind::kDivergence,
                          "lanes 0x000000f0 of the member mask 0x000000ff do not execute it"));
}

TEST(Warp, SpecialRegistersAsVectors) {
  Emulator e;
  e.config.grid = {4, 2, 1};
  e.config.cluster = {2, 1, 1};
  e.config.block = {4, 1, 1};
  uint64_t out = *e.memory.allocate(4 * 8 * 4 * 4);
  e.run(kernel(R"(mov.v4.u32 {%r1, %r2, %r3, _}, %clusterid;
  mov.v4.u32 {%r4, %r5, _, %r6}, %nclusterid;
  mov.v2.u32 {%r7, %r8}, %ctaid;
  mov.v4.b32 {%r9, _, _, _}, %tid;
  mad.lo.u32 %r10, %r8, 4, %r7;
  mad.lo.u32 %r10, %r10, 4, %r9;
  mul.wide.u32 %rd2, %r10, 16;
  ld.param.u64 %rd1, [p0];
  add.u64 %rd1, %rd1, %rd2;
  mad.lo.u32 %r3, %r3, 10, %r6;
  mad.lo.u32 %r4, %r4, 10, %r5;
  st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};)"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  const auto r = e.download<uint32_t>(out, 4 * 8 * 4);
  for (uint32_t cta = 0; cta < 8; ++cta) {
    const uint32_t* v = &r[(cta * 4 + 3) * 4];
    EXPECT_EQ(std::vector<uint32_t>(v, v + 4), (std::vector<uint32_t>{cta % 4 / 2, cta / 4, 0, 22})) << cta;
  }
}

std::string unsupported(const std::string& body) {
  Module module;
  Status status = parse_ptx(kernel(body), "test.ptx", &module);
  if (!status.ok()) return status.message();
  const auto& list = module.find_kernel("k")->unsupported;
  return list.empty() ? "" : list[0];
}

TEST(Warp, SpecialRegistersUsedWrongly) {
  EXPECT_EQ(unsupported("mov.u32 %r1, %tid;"),
            "test.ptx:12: special register %tid is a vector: mov.u32 needs %tid.x, .y or .z: 'mov.u32 %r1, "
            "%tid;'");
  EXPECT_EQ(unsupported("mov.u32 %r1, %laneid.x;"),
            "test.ptx:12: special register %laneid is no vector: .x has no meaning: 'mov.u32 %r1, "
            "%laneid.x;'");
  EXPECT_EQ(unsupported("mov.v4.u32 {%r1, %r2, %r3, _}, %laneid;"),
            "test.ptx:12: special register %laneid is no vector: .x has no meaning: 'mov.v4.u32 {%r1, %r2, "
            "%r3, _}, %laneid;'");
  EXPECT_EQ(unsupported("mov.v4.u32 {%r1, %r2}, %tid;"),
            "test.ptx:12: mov.v4.u32 needs 4 registers, found 2: 'mov.v4.u32 {%r1, %r2}, %tid;'");
}

}  // namespace
}  // namespace mla::emu

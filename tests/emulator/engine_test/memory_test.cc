// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

TEST(Memory, AllocationsHaveGuardsAndShadows) {
  Memory memory;
  uint64_t a = *memory.allocate(100), b = *memory.allocate(100);
  EXPECT_EQ(a % 256, 0u);
  EXPECT_GE(b - a, 100u + 4096);
  EXPECT_EQ(memory.unwritten_bytes(a, 100), 100u);
  uint32_t value = 7;
  EXPECT_TRUE(memory.write(a + 4, &value, 4));
  EXPECT_EQ(memory.unwritten_bytes(a, 100), 96u);
  EXPECT_FALSE(memory.write(a + 98, &value, 4));
  EXPECT_TRUE(memory.copy(b, a, 8));
  EXPECT_EQ(memory.unwritten_bytes(b, 8), 4u);
  EXPECT_TRUE(memory.fill(b, 0x01020304, 4, 2));
  uint8_t bytes[8];
  EXPECT_TRUE(memory.read(b, bytes, 8));
  EXPECT_EQ(bytes[4], 4);
  EXPECT_TRUE(memory.free(a));
  EXPECT_FALSE(memory.free(a));
  EXPECT_FALSE(memory.find(a).has_value());
}

TEST(Memory, HugeAllocationsAreLazy) {
  Memory memory;
  auto a = memory.allocate(uint64_t{64} << 30);
  ASSERT_TRUE(a.has_value());
  uint64_t far = *a + (uint64_t{60} << 30);
  uint32_t value = 9, back = 0;
  EXPECT_TRUE(memory.write(far, &value, 4));
  EXPECT_TRUE(memory.read(far, &back, 4));
  EXPECT_EQ(back, 9u);
  EXPECT_FALSE(Memory(1000).allocate(2000).has_value());
}

TEST(Memory, OutOfBoundsNamesTheAllocation) {
  Emulator e;
  uint64_t a = e.upload(std::vector<uint32_t>(4, 1));
  EXPECT_TRUE(faults_with(
      e.run(kernel("ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %laneid;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 "
                   "%rd1, %rd1, %rd2;\nld.global.u32 %r2, [%rd1];"),
            {a}),
      FaultKind::kOutOfBounds, "lane 4, PTX line 16 'ld.global.u32 %r2, [%rd1];': read of 4 bytes at"));
  EXPECT_NE(e.report.fault.message.find("0 bytes past the allocation"), std::string::npos)
      << e.report.fault.message;
  EXPECT_EQ(e.report.fault.warp, 0);
}

TEST(Memory, UseAfterFreeAndNullAreFaults) {
  Emulator e;
  uint64_t a = e.upload(std::vector<uint32_t>(4, 1));
  e.memory.free(a);
  std::string text = kernel("ld.param.u64 %rd1, [p0];\nst.global.u32 [%rd1], 0;");
  EXPECT_TRUE(faults_with(e.run(text, {a}), FaultKind::kOutOfBounds, "is in no allocation"));
  EXPECT_TRUE(
      faults_with(e.run(text, {0}), FaultKind::kOutOfBounds, "write of 4 bytes at 0x0 is in no allocation"));
}

TEST(Memory, MisalignmentAndUnwritten) {
  Emulator e;
  uint64_t a = *e.memory.allocate(64);
  EXPECT_TRUE(
      faults_with(e.run(kernel("ld.param.u64 %rd1, [p0];\nst.global.v2.u32 [%rd1+4], {%r1, %r2};"), {a}),
                  FaultKind::kMisaligned, "is not a multiple of 8"));
  EXPECT_TRUE(faults_with(e.run(kernel("ld.param.u64 %rd1, [p0];\nld.global.u32 %r1, [%rd1];"), {a}),
                          FaultKind::kUnwritten, "that nothing has written"));
  e.config.checks[Check::kUnwritten] = CheckMode::kOff;
  EXPECT_TRUE(e.run(kernel("ld.param.u64 %rd1, [p0];\nld.global.u32 %r1, [%rd1];"), {a}).ok());
}

TEST(Memory, SharedBoundsAndUnwritten) {
  Emulator e;
  std::string shared = ".shared .align 16 .b8 buffer[64];\n";
  EXPECT_TRUE(faults_with(
      e.run(kernel("mov.u32 %r1, buffer;\nld.shared.u32 %r2, [%r1+64];", "", shared)),
      FaultKind::kOutOfBounds,
      "access of 4 bytes at shared address 0x440 is outside the shared memory of the CTA, 0x400 to 0x440 (64 "
      "bytes static, 0 dynamic)"));
  EXPECT_TRUE(faults_with(
      e.run(kernel("mov.u32 %r1, buffer;\nst.shared.u16 [%r1], 1;\nld.shared.u32 %r2, [%r1];", "", shared)),
      FaultKind::kUnwritten,
      "read of 4 bytes at shared address 0x400 (buffer + 0), but nothing has written the byte at 0x402"));
  EXPECT_TRUE(faults_with(
      e.run(kernel("mov.u32 %r1, buffer;\nld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1+8];", "", shared)),
      FaultKind::kMisaligned, "shared address 0x408 is not a multiple of 16"));
}

TEST(Memory, GenericAddressesOfEverySpace) {
  Emulator e;
  e.config.block = {1, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(8, 0));
  e.run(kernel(R"(.local .align 4 .b8 mine[16];
  ld.param.u64 %rd1, [p0];
  mov.u64 %rd2, buffer;
  cvta.shared.u64 %rd2, %rd2;
  st.u32 [%rd2], 1;
  ld.u32 %r1, [%rd2];
  mov.u64 %rd3, mine;
  cvta.local.u64 %rd3, %rd3;
  st.u32 [%rd3+4], 2;
  ld.u32 %r2, [%rd3+4];
  mov.u64 %rd4, table;
  cvta.const.u64 %rd4, %rd4;
  ld.u32 %r3, [%rd4+4];
  mov.b64 %rd5, p0;
  cvta.param.u64 %rd5, %rd5;
  ld.u64 %rd6, [%rd5];
  ld.global.u32 %r4, [variable];
  isspacep.shared %p1, %rd2;
  selp.u32 %r5, 1, 0, %p1;
  isspacep.global %p1, %rd2;
  selp.u32 %r6, 1, 0, %p1;
  cvta.to.shared.u64 %rd7, %rd2;
  ld.shared.u32 %r7, [%rd7];
  st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
  st.global.v2.u32 [%rd6+16], {%r5, %r6};
  st.global.u32 [%rd6+24], %r7;)",
               "",
               ".shared .align 4 .b8 buffer[16];\n.const .align 4 .u32 table[2] = {5, 6};\n.global .u32 "
               "variable = 8;\n"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(out, 7), (std::vector<uint32_t>{1, 2, 6, 8, 1, 0, 1}));
}

TEST(Memory, Atomics) {
  Emulator e;
  e.config.block = {64, 1, 1};
  uint64_t data = e.upload<uint32_t>({0, 100, 0, 0x3f800000, 5, 0, 0, 0});
  e.run(kernel(R"(ld.param.u64 %rd1, [p0];
  mov.u32 %r1, %tid.x;
  atom.global.add.u32 %r2, [%rd1], 2;
  red.global.min.u32 [%rd1+4], %r1;
  atom.global.inc.u32 %r3, [%rd1+8], 9;
  atom.add.acq_rel.gpu.global.f32 %f1, [%rd1+12], 0f3F800000;
  atom.global.cas.b32 %r4, [%rd1+16], 5, 77;
  setp.eq.u32 %p1, %r4, 5;
  @%p1 red.global.add.u32 [%rd1+20], 1;
  red.global.or.b32 [%rd1+24], %r1;
  atom.global.exch.b32 %r5, [%rd1+28], 3;)"),
        {data});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(data, 8), (std::vector<uint32_t>{128, 0, 4, 0x42820000, 77, 1, 63, 3}));
}

TEST(Memory, WidthsAndSigns) {
  Emulator e;
  e.config.block = {1, 1, 1};
  uint64_t data = e.upload<uint32_t>({0x8180ff7f, 0, 0, 0, 0, 0});
  e.run(kernel(R"(ld.param.u64 %rd1, [p0];
  ld.global.s8 %r1, [%rd1+1];
  ld.global.u8 %r2, [%rd1+1];
  ld.global.s16 %r3, [%rd1+2];
  ld.global.s8 %rd2, [%rd1+2];
  ld.global.u8 %h1, [%rd1+3];
  cvt.u32.u16 %r4, %h1;
  st.global.v4.u32 [%rd1+8], {%r1, %r2, %r3, %r4};
  ret;)"),
        {data});
  EXPECT_TRUE(faults_with(e.report, FaultKind::kMisaligned, "is not a multiple of 16"));
  uint64_t more = e.upload<uint32_t>({0x8180ff7f, 0, 0, 0, 0, 0, 0, 0});
  e.run(kernel(R"(ld.param.u64 %rd1, [p0];
  ld.global.s8 %r1, [%rd1+1];
  ld.global.u8 %r2, [%rd1+1];
  ld.global.s16 %r3, [%rd1+2];
  ld.global.s8 %rd2, [%rd1+2];
  ld.global.u8 %h1, [%rd1+3];
  cvt.u32.u16 %r4, %h1;
  st.global.v4.u32 [%rd1+16], {%r1, %r2, %r3, %r4};
  st.global.u64 [%rd1+8], %rd2;)"),
        {more});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(more, 8), (std::vector<uint32_t>{0x8180ff7f, 0, 0xffffff80, 0xffffffff,
                                                                  0xffffffff, 0xff, 0xffff8180, 0x81}));
}

}  // namespace
}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

std::string parse_error(const std::string& text) {
  Module module;
  return parse_ptx(text, "m.ptx", &module).message();
}

std::string first_unsupported(const std::string& body, const std::string& target = "sm_120a") {
  Module module;
  Status status = parse_ptx(kernel(body, "", "", target), "m.ptx", &module);
  if (!status.ok()) return status.message();
  const KernelInfo* info = module.find_kernel("k");
  return info->unsupported.empty() ? "" : info->unsupported[0];
}

TEST(Parser, ModuleFields) {
  Module module;
  ASSERT_TRUE(
      parse_ptx(kernel("ret;", ".reqntid 64, 2, 1\n.reqnctapercluster 4, 1, 1\n.maxnreg 40\n",
                       ".global .align 4 .u32 table[3] = {1, 2, 0x30};\n.const .f32 c = 0f3F800000;\n"),
                "m.ptx", &module)
          .ok());
  EXPECT_EQ(module.target(), "sm_120a");
  EXPECT_EQ(module.sm(), 120u);
  EXPECT_EQ(module.target_suffix(), 'a');
  EXPECT_EQ(module.ptx_version(), 88u);
  const KernelInfo* k = module.find_kernel("k");
  ASSERT_NE(k, nullptr);
  EXPECT_EQ(k->param_bytes, 32u);
  EXPECT_EQ(k->params[3].offset, 24u);
  EXPECT_EQ(k->reqntid.x, 64u);
  EXPECT_EQ(k->reqntid.y, 2u);
  EXPECT_EQ(k->cluster.x, 4u);
  EXPECT_EQ(k->max_registers, 40u);
  const GlobalInfo* table = module.find_global("table");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->bytes, 12u);
  EXPECT_EQ(table->initial[8], 0x30);
  EXPECT_TRUE(module.find_global("c")->constant);
}

TEST(Parser, RefusesWhatIsNotForUs) {
  EXPECT_EQ(parse_error("hello"), "m.ptx:1: expected a directive, found 'hello'");
  EXPECT_EQ(parse_error(""), "m.ptx:1: no .version directive: this is not a PTX module");
  EXPECT_EQ(parse_error(".version 10.0\n.target sm_90a\n"),
            "m.ptx:1: PTX version 10.0 is not supported: the emulator reads 6.0 to 9.x");
  EXPECT_EQ(parse_error(".version 8.8\n.target sm_75\n"),
            "m.ptx:2: target sm_75 is not supported: the emulator executes sm_80 and later");
  EXPECT_EQ(parse_error(".version 8.8\n.target sm_90f\n"),
            "m.ptx:2: unknown target 'sm_90f': the suffix f starts with sm_100f");
  EXPECT_EQ(parse_error(".version 8.8\n.target sm_90b\n"), "m.ptx:2: unknown target 'sm_90b'");
  EXPECT_EQ(parse_error(".version 8.8\n.target sm_90a\n.address_size 32\n"),
            "m.ptx:3: .address_size must be 64");
  EXPECT_EQ(parse_error(".version 8.8\n.target sm_90a\n.texref t;\n"), "m.ptx:3: unknown directive .texref");
}

TEST(Parser, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(parse_error(kernel("add.u32 %r1, %r2, %r3")), "m.ptx:13: expected ';', found '}'");
  EXPECT_EQ(parse_error(kernel("add.u32 %r1, %q2, %r3;")), "m.ptx:12: register %q2 is not declared");
  EXPECT_EQ(parse_error(kernel("L:\nL:\nret;")), "m.ptx:13: label L is defined twice");
}

TEST(Parser, UnknownFormsAreNeverIgnored) {
  EXPECT_EQ(first_unsupported("frobnicate.u32 %r1, %r2;"),
            "m.ptx:12: unknown instruction frobnicate.u32: 'frobnicate.u32 %r1, %r2;'");
  EXPECT_EQ(first_unsupported("add.wild.u32 %r1, %r2, %r3;"),
            "m.ptx:12: modifier .wild of add.wild.u32 is not supported: 'add.wild.u32 %r1, %r2, %r3;'");
  EXPECT_EQ(first_unsupported("add.u32 %r1, %r2;"),
            "m.ptx:12: add.u32 takes 3 operands, found 2: 'add.u32 %r1, %r2;'");
  EXPECT_EQ(first_unsupported("add.u32 %rd1, %r2, %r3;"),
            "m.ptx:12: register %rd1 has 64 bits, add.u32 writes 32: 'add.u32 %rd1, %r2, %r3;'");
  EXPECT_EQ(first_unsupported("add.f8x3 %r1, %r2, %r3;"),
            "m.ptx:12: modifier .f8x3 of add.f8x3 is not supported: 'add.f8x3 %r1, %r2, %r3;'");
  EXPECT_EQ(first_unsupported("add %r1, %r2, %r3;"),
            "m.ptx:12: add is not supported without a type: 'add %r1, %r2, %r3;'");
  EXPECT_EQ(first_unsupported("bra NOWHERE;"), "m.ptx:12: label NOWHERE is not defined: 'bra NOWHERE;'");
  EXPECT_EQ(first_unsupported("setmaxnreg.inc.sync.aligned.u32 100;"),
            "m.ptx:12: setmaxnreg needs a multiple of 8 from 24 to 256, found 100: "
            "'setmaxnreg.inc.sync.aligned.u32 100;'");
  EXPECT_EQ(
      first_unsupported("cvt.s32.f32 %r1, %f1;"),
      "m.ptx:12: cvt from float to integer needs an integer rounding modifier: 'cvt.s32.f32 %r1, %f1;'");
}

TEST(Parser, AnUnsupportedKernelDoesNotSinkTheModule) {
  Emulator e;
  EXPECT_TRUE(faults_with(e.run(kernel("frob.u32 %r1;\nret;")), FaultKind::kUnsupported,
                          "test.ptx:12: unknown instruction frob.u32: 'frob.u32 %r1;'"));
}

TEST(Parser, ScopesHideNames) {
  Emulator e;
  uint64_t out = e.upload<uint32_t>({0, 0});
  e.config.block = {1, 1, 1};
  e.run(kernel(R"(ld.param.u64 %rd1, [p0];
  mov.u32 %r1, 7;
  {
  .reg .b32 %r1;
  .reg .pred p;
  mov.u32 %r1, 1;
  setp.eq.u32 p, %r1, 1;
  @p bra DONE;
  mov.u32 %r1, 100;
  DONE:
  st.global.u32 [%rd1], %r1;
  }
  {
  .reg .pred p;
  setp.eq.u32 p, %r1, 8;
  @p bra DONE;
  st.global.u32 [%rd1+4], %r1;
  DONE:
  }
  ret;)"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(out, 2), (std::vector<uint32_t>{1, 7}));
}

TEST(Parser, LaunchChecks) {
  Emulator e;
  e.config.block = {2000, 1, 1};
  EXPECT_TRUE(
      faults_with(e.run(kernel("ret;")), FaultKind::kLaunch, "block of 2000 threads: 1 to 1024 are allowed"));
  e.config.block = {32, 1, 1};
  EXPECT_TRUE(faults_with(e.run(kernel("ret;", ".reqntid 64, 1, 1\n")), FaultKind::kLaunch,
                          "block (32, 1, 1): the kernel requires (64, 1, 1)"));
  e.config.grid = {3, 1, 1};
  EXPECT_TRUE(faults_with(e.run(kernel("ret;", ".reqnctapercluster 2, 1, 1\n")), FaultKind::kLaunch,
                          "grid (3, 1, 1) is not a multiple of the cluster (2, 1, 1)"));
  e.config.grid = {1, 1, 1};
  e.config.dynamic_shared_bytes = 300000;
  EXPECT_TRUE(faults_with(e.run(kernel("ret;")), FaultKind::kLaunch,
                          "0 bytes of static and 300000 of dynamic shared memory: the limit is 232448"));
}

}  // namespace
}  // namespace mla::emu

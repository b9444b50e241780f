// SPDX-License-Identifier: Apache-2.0
//
// Texts that no compiler writes: whatever is handed to the parser, the answer is a sentence, soon.
#include <chrono>
#include <clocale>
#include <random>

#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

const std::string kHead = ".version 8.8\n.target sm_120a\n.address_size 64\n";

std::string repeat(const std::string& text, size_t n) {
  std::string result;
  for (size_t i = 0; i < n; ++i) result += text;
  return result;
}

// What the parser or the decoder has to say; "" if nothing. Fails when it takes long.
std::string verdict(const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  Module module;
  const Status status = parse_ptx(text, "m.ptx", &module);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 20) << text.substr(0, 100);  // well under a second without a sanitizer
  if (!status.ok()) {
    EXPECT_LT(status.message().size(), 1000u);
    return status.message();
  }
  for (const KernelInfo& k : module.kernels()) {
    if (!k.unsupported.empty()) return k.unsupported[0];
  }
  return "";
}

TEST(HostilePtx, DeepNesting) {
  const size_t kDeep = 1'000'000;
  EXPECT_EQ(verdict(kHead + ".global .b32 x[2] = " + repeat("{", kDeep)),
            "m.ptx:4: an initialiser is nested deeper than 64");
  EXPECT_EQ(verdict(kernel("call " + repeat("(", kDeep))), "m.ptx:12: operands are nested deeper than 64");
  EXPECT_EQ(verdict(kernel("mov.b64 %rd1, " + repeat("{", kDeep))),
            "m.ptx:12: operands are nested deeper than 64");
  EXPECT_EQ(verdict(kernel("ld.global.u32 %r1, [%rd1, " + repeat("[%rd1, ", kDeep))),
            "m.ptx:12: operands are nested deeper than 64");
  EXPECT_EQ(verdict(kernel(repeat("{", kDeep))), "m.ptx:12: blocks are nested deeper than 256");
  EXPECT_EQ(verdict(kHead + ".section .debug {" + repeat("{", kDeep)), "m.ptx:4: '{' without '}'");
  EXPECT_EQ(verdict(kernel("ret;", "", ".func f .attribute(" + repeat("(", kDeep))),
            "m.ptx:4: unknown performance directive .attribute");
}

TEST(HostilePtx, DeepCalls) {
  std::string text;
  const int kFunctions = 20'000;
  text += ".func f0()\n{\nret;\n}\n";
  for (int i = 1; i < kFunctions; ++i) {
    text += ".func f" + std::to_string(i) + "()\n{\ncall f" + std::to_string(i - 1) + ", ();\nret;\n}\n";
  }
  EXPECT_EQ(verdict(kernel("call f" + std::to_string(kFunctions - 1) + ", ();", "", text)),
            "m.ptx:95003: calls nested deeper than 1000 are not supported");
}

TEST(HostilePtx, Sizes) {
  const auto global = [](const std::string& declaration) { return verdict(kHead + declaration); };
  EXPECT_EQ(global(".global .b8 x[-1];"), "m.ptx:4: array x has a length of -1");
  EXPECT_EQ(global(".global .b8 x[99999999999999999999];"),
            "m.ptx:4: the number 99999999999999999999 does not fit into 64 bits");
  EXPECT_EQ(global(".global .b8 x[18446744073709551615];"), "m.ptx:4: array x has a length of -1");
  EXPECT_EQ(global(".global .b64 x[4611686018427387904][4];"),
            "m.ptx:4: variable x is larger than the 268435456 bytes that are supported");
  EXPECT_EQ(global(".global .b8 x[9223372036854775807];"),
            "m.ptx:4: variable x is larger than the 268435456 bytes that are supported");
  EXPECT_EQ(global(".shared .b8 a[4294967297];"),
            "m.ptx:4: variable a is larger than the 1048576 bytes that are supported");
  EXPECT_EQ(global(".shared .b8 a[1048576];\n.shared .b8 b[1];"),
            "m.ptx:5: variables up to b take 1048577 bytes, more than the 1048576 that are supported");
  EXPECT_EQ(global(repeat(".global .b8 x[268000000];\n", 2)),
            "m.ptx:5: the variables of the module take more than the 268435456 bytes that are supported");
  EXPECT_EQ(global(".global .align 2147483648 .b8 x[1];"),
            "m.ptx:4: .align is 2147483648, allowed are 1 to 32768");
  EXPECT_EQ(global(".const .b64 x[1] = {x, x, x};"), "m.ptx:4: initialiser names 'x', which is not declared");
  EXPECT_EQ(global(".const .b64 y;\n.const .b64 x[1] = {y, y, y};"),
            "m.ptx:5: variable x has 8 bytes, its initialiser 24");
  EXPECT_EQ(global(".shared .b32 y;\n.const .b64 x[1] = {y};"),
            "m.ptx:5: initialiser names 'y', which is no .global or .const variable");
  EXPECT_EQ(verdict(kernel(".local .b8 x[1000000];")),
            "m.ptx:12: variable x is larger than the 524288 bytes that are supported");
  EXPECT_EQ(verdict(kernel("{\n.param .b8 x[100000];\n}")),
            "m.ptx:14: variable x is larger than the 65536 bytes that are supported");
  EXPECT_EQ(verdict(kernel("ret;", "",
                           repeat(".func f() {\n.shared .b8 a[1000000];\nret;\n}\n", 1) +
                               ".func g() {\n.shared .b8 a[1000000];\nret;\n}\n")),
            "m.ptx: the shared variables of the module's functions take 2000000 bytes, more than the 1048576 "
            "that are "
            "supported");
  EXPECT_EQ(verdict(kernel("ret;", ".maxntid 4294967297, 1, 1\n")),
            "m.ptx:5: a dimension is 4294967297, allowed are 0 to 2147483647");
}

TEST(HostilePtx, Registers) {
  EXPECT_EQ(verdict(kernel(".reg .b32 r<9999999>;")),
            "m.ptx:12: function k declares more than the 262144 registers that are supported");
  EXPECT_EQ(verdict(kernel(".reg .b32 r<-5>;")), "m.ptx:12: register r<-5> has a negative count");
  EXPECT_EQ(verdict(kernel(".reg .b32 r<5>;\n.reg .b64 r<5>;")), "m.ptx:13: register r0 is declared twice");
  EXPECT_EQ(verdict(kernel(".reg .b32 r;\n.reg .b64 r;")), "m.ptx:13: register r is declared twice");
  EXPECT_EQ(verdict(kernel(".reg .b32 r<200>;\nmov.u32 r199, 1;\nmov.u32 r0, r199;")), "");
  EXPECT_EQ(verdict(kernel(".reg .b32 r<200>;\nmov.u32 r200, 1;")),
            "m.ptx:13: the destination of mov.u32 must be a register: 'mov.u32 r200, 1;'");
  EXPECT_EQ(verdict(kernel(".reg .b32 r<200>;\nmov.u32 r007, 1;")),
            "m.ptx:13: the destination of mov.u32 must be a register: 'mov.u32 r007, 1;'");
  std::string many = kHead;
  for (int i = 0; i < 20; ++i)
    many += ".func f" + std::to_string(i) + "()\n{\n.reg .b32 r<262144>;\nret;\n}\n";
  EXPECT_EQ(verdict(many),
            "m.ptx:86: the module declares more than the 4194304 registers that are supported");
}

TEST(HostilePtx, EndsInTheMiddle) {
  EXPECT_EQ(verdict(kHead + ".global .attribute(.managed"), "m.ptx:4: '(' without ')'");
  const std::string whole =
      kernel("L:\n@%p1 bra L;\nmov.u32 %r1, {%h1, %h2};\nld.global.u32 %r1, [%rd1+4];\nret;",
             ".reqntid 32, 1, 1\n", ".global .u32 x[2] = {1, 2};\n.pragma \"nounroll\";\n");
  const size_t entry = whole.find("entry");
  for (size_t end = 0; end < whole.size() - 2; ++end) {
    const std::string text = verdict(whole.substr(0, end));
    if (end > entry) {
      EXPECT_NE(text, "") << end;
    }
  }
}

TEST(HostilePtx, Versions) {
  EXPECT_EQ(verdict(".version 9.62222222222222222222\n.target sm_90a\n"),
            "m.ptx:1: PTX version 9.62222222222222222222 is not supported: the emulator reads 6.0 to 9.x");
  EXPECT_EQ(verdict(".version 99999999999.0\n"),
            "m.ptx:1: PTX version 99999999999.0 is not supported: the emulator reads 6.0 to 9.x");
  EXPECT_EQ(verdict(".version 8.\n"), "m.ptx:1: .version needs major.minor, found '8.'");
  EXPECT_EQ(verdict(".version 8.8.8\n"), "m.ptx:1: .version needs major.minor, found '8.8.8'");
  EXPECT_EQ(verdict(".version 8.8\n.target sm_99999999999\n"), "m.ptx:2: unknown target 'sm_99999999999'");
  EXPECT_EQ(verdict(".version 8.8\n.target sm_\n"), "m.ptx:2: unknown target 'sm_'");
}

TEST(HostilePtx, Numbers) {
  EXPECT_EQ(verdict(kernel("mov.u32 %r1, 0x;")), "m.ptx:12: '0x' is no number");
  EXPECT_EQ(verdict(kernel("mov.u32 %r1, 0x1ffffffffffffffff;")),
            "m.ptx:12: the number 0x1ffffffffffffffff does not fit into 64 bits");
  EXPECT_EQ(verdict(kernel("mov.u32 %r1, 09;")), "m.ptx:12: '09' is no number");
  EXPECT_EQ(verdict(kernel("mov.f32 %f1, 1e999;")), "m.ptx:12: the number 1e999 is out of range");
  EXPECT_EQ(verdict(kernel("mov.u32 %r1, 12abc;")), "m.ptx:12: '12abc' is no number");
  EXPECT_EQ(verdict(kernel(
                "mov.u32 %r1, 0b101;\nmov.u32 %r1, 017U;\nmov.u64 %rd1, 0xFFFFFFFFFFFFFFFF;\nmov.f64 %d1, "
                "1.5e-3;\nmov.f64 %d1, 2.;")),
            "");
}

TEST(HostilePtx, AnotherLocale) {
  const char* const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
  const char* set = nullptr;
  for (const char* name : names) {
    if (!set) set = std::setlocale(LC_ALL, name);
  }
  if (!set) GTEST_SKIP() << "this machine has no locale with a decimal comma";
  EXPECT_EQ(verdict(kernel("mov.f32 %f1, 0.5;")), "");
  std::setlocale(LC_ALL, "C");
}

TEST(HostilePtx, LongTexts) {
  const std::string name(1'000'000, 'x');
  EXPECT_EQ(verdict(kHead + "." + name), "m.ptx:4: unknown directive .xxxxxxxxxxxxxxxxxxxxxxxx...");
  EXPECT_EQ(verdict(kernel(name + ".u32 %r1;")),
            "m.ptx:12: instruction xxxxxxxxxxxxxxxxxxxxxxxx... is too long");
  EXPECT_LT(verdict(kernel("bra " + name + ";")).size(), 500u);
  EXPECT_EQ(verdict(kernel("\x80\xff\x1b[31m")), "m.ptx:12: expected an instruction, found '???[31m'");
  // A line of a megabyte with many mistakes.
  Module module;
  ASSERT_TRUE(parse_ptx(kernel(repeat("frob.u32 %r1; ", 70'000)), "m.ptx", &module).ok());
  const auto& list = module.find_kernel("k")->unsupported;
  ASSERT_EQ(list.size(), 101u);
  EXPECT_EQ(list[0].substr(0, 60), "m.ptx:12: unknown instruction frob.u32: 'frob.u32 %r1; frob.");
  EXPECT_LT(list[0].size(), 500u);
  EXPECT_EQ(list[100], "and 69900 more");
}

TEST(HostilePtx, ManyImmediatesAndLabels) {
  std::string body;
  for (int i = 0; i < 50'000; ++i) body += "mov.u32 %r1, " + std::to_string(i) + ";\n";
  EXPECT_EQ(verdict(kernel(body)), "");
  body.clear();
  for (int i = 0; i < 20'000; ++i)
    body += "{\n@%p1 bra L" + std::to_string(i) + ";\nadd.u32 %r1, %r1, 1;\n}\nL" + std::to_string(i) + ":\n";
  EXPECT_EQ(verdict(kernel(body)), "");
}

// Random changes to a text that is right: no crash, no exception, no long wait.
TEST(HostilePtx, Mutations) {
  const std::string text = kernel(
      "L:\n@%p1 bra L;\nmov.b32 %r1, {%h1, %h2};\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1+4];\n"
      "shfl.sync.idx.b32 %r1|%p1, %r2, 1, 31, -1;\nbrx.idx %r1, T;\nT: .branchtargets L;\ncall f, "
      "();\n{\n.param "
      ".b32 a[3];\nst.param.b32 [a+4], %r1;\n}\ncp.async.bulk.wait_group 0;\nmbarrier.init.shared.b64 [s+8], "
      "1;\n"
      "tanh.approx.f32 %f1, 0f3F800000;\nret;",
      ".reqntid 32, 1, 1\n",
      ".file 1 \"a.cu\"\n.global .align 4 .u32 x[2] = {1, 2};\n.const .b64 y = x+4;\n.shared .align 8 .b8 "
      "s[64];\n.func f()\n{\n.local .b8 z[16];\nret;\n}\n");
  ASSERT_EQ(verdict(text), "");
  std::mt19937 rng(1);
  const std::string alphabet = "0123456789.,;:{}()[]<>@!%+-|\"/*\n axrb_$~\x80";
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = text;
    for (uint32_t n = 1 + rng() % 4; n > 0; --n) {
      const size_t at = rng() % changed.size();
      switch (rng() % 4) {
        case 0:
          changed[at] = alphabet[rng() % alphabet.size()];
          break;
        case 1:
          changed.erase(at, 1 + rng() % 8);
          break;
        case 2:
          changed.insert(at, 1 + rng() % 3, alphabet[rng() % alphabet.size()]);
          break;
        default:
          changed.insert(at, changed.substr(rng() % changed.size(), rng() % 20));
      }
    }
    verdict(changed);
  }
}

}  // namespace
}  // namespace mla::emu

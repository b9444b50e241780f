// SPDX-License-Identifier: Apache-2.0
//
// One instruction at a time: inputs from arrays, result to an array.
#include <bit>
#include <cmath>

#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

constexpr uint32_t kNan = 0x7fffffff;
uint32_t f(float x) { return std::bit_cast<uint32_t>(x); }

// Executes `instruction` in one thread; a, b, c are in %r1-%r3 and %f1-%f3 alike. Returns %r0, or %f0.
uint32_t run32(const std::string& instruction, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
  Emulator e;
  e.config.block = {1, 1, 1};
  uint64_t data = e.upload<uint32_t>({a, b, c, 0xdeadbeef});
  bool is_float = instruction.find("%f0") != std::string::npos;
  e.run(kernel("ld.param.u64 %rd9, [p0];\nld.global.u32 %r1, [%rd9];\nld.global.u32 %r2, "
               "[%rd9+4];\nld.global.u32 %r3, "
               "[%rd9+8];\nmov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\ncvt.u16.u32 %h1, "
               "%r1;\ncvt.u16.u32 "
               "%h2, %r2;\n" +
               instruction +
               (is_float ? "\nst.global.f32 [%rd9+12], %f0;" : "\nst.global.u32 [%rd9+12], %r0;")),
        {data});
  EXPECT_TRUE(e.report.ok()) << instruction << ": " << e.report.fault.text();
  return e.download<uint32_t>(data, 4)[3];
}

uint64_t run64(const std::string& instruction, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  Emulator e;
  e.config.block = {1, 1, 1};
  uint64_t data = e.upload<uint64_t>({a, b, c, 0});
  e.run(
      kernel(
          "ld.param.u64 %rd9, [p0];\nld.global.u64 %rd1, [%rd9];\nld.global.u64 %rd2, "
          "[%rd9+8];\nld.global.u64 %rd3, "
          "[%rd9+16];\nmov.b64 %d1, %rd1;\nmov.b64 %d2, %rd2;\nmov.b64 %d3, %rd3;\ncvt.u32.u64 %r1, %rd1;\n" +
          instruction + "\nst.global.u64 [%rd9+24], %rd0;"),
      {data});
  EXPECT_TRUE(e.report.ok()) << instruction << ": " << e.report.fault.text();
  return e.download<uint64_t>(data, 4)[3];
}

TEST(Arithmetic, Integers) {
  EXPECT_EQ(run32("add.s32 %r0, %r1, %r2;", 0xffffffff, 2), 1u);
  EXPECT_EQ(run32("add.sat.s32 %r0, %r1, %r2;", 0x7fffffff, 2), 0x7fffffffu);
  EXPECT_EQ(run32("sub.s32 %r0, %r1, -5;", 10), 15u);
  EXPECT_EQ(run32("mul.lo.s32 %r0, %r1, %r2;", 0x80000001, 3), 0x80000003u);
  EXPECT_EQ(run32("mul.hi.u32 %r0, %r1, %r2;", 0xffffffff, 0xffffffff), 0xfffffffeu);
  EXPECT_EQ(run32("mul.hi.s32 %r0, %r1, %r2;", 0xffffffff, 0xffffffff), 0u);
  EXPECT_EQ(run32("mul.wide.s16 %r0, %h1, %h2;", 0xffff, 3), 0xfffffffdu);
  EXPECT_EQ(run32("mad.lo.s32 %r0, %r1, %r2, %r3;", 5, 7, 1), 36u);
  EXPECT_EQ(run32("div.s32 %r0, %r1, %r2;", static_cast<uint32_t>(-7), 2), static_cast<uint32_t>(-3));
  EXPECT_EQ(run32("div.s32 %r0, %r1, %r2;", 0x80000000, 0xffffffff), 0x80000000u);
  EXPECT_EQ(run32("div.u32 %r0, %r1, %r2;", 7, 0), 0xffffffffu);
  EXPECT_EQ(run32("rem.s32 %r0, %r1, %r2;", static_cast<uint32_t>(-7), 2), static_cast<uint32_t>(-1));
  EXPECT_EQ(run32("min.s32 %r0, %r1, %r2;", 0xffffffff, 1), 0xffffffffu);
  EXPECT_EQ(run32("min.u32 %r0, %r1, %r2;", 0xffffffff, 1), 1u);
  EXPECT_EQ(run32("abs.s32 %r0, %r1;", 0x80000000), 0x80000000u);
  EXPECT_EQ(run32("sad.u32 %r0, %r1, %r2, %r3;", 3, 10, 100), 107u);
  EXPECT_EQ(run64("mul.wide.u32 %rd0, %r1, 16;", 0xffffffff), 0xffffffff0u);
  EXPECT_EQ(run64("mad.wide.s32 %rd0, %r1, 4, %rd2;", 0xffffffff, 100), 96u);
  EXPECT_EQ(run64("add.cc.u64 %rd0, %rd1, %rd2;\naddc.u64 %rd0, %rd3, 0;", ~uint64_t{0}, 1, 5), 6u);
  EXPECT_EQ(run64("sub.cc.u64 %rd0, %rd1, %rd2;\nsubc.u64 %rd0, %rd3, 0;", 0, 1, 5), 4u);
}

TEST(Arithmetic, Bits) {
  EXPECT_EQ(run32("shl.b32 %r0, %r1, %r2;", 1, 32), 0u);
  EXPECT_EQ(run32("shr.s32 %r0, %r1, %r2;", 0x80000000, 40), 0xffffffffu);
  EXPECT_EQ(run32("shr.u32 %r0, %r1, 31;", 0x80000000), 1u);
  EXPECT_EQ(run32("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", 0x12345678, 0x9abcdef0, 36), 0xabcdef01u);
  EXPECT_EQ(run32("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", 0x12345678, 0x9abcdef0, 40), 0x9abcdef0u);
  EXPECT_EQ(run32("lop3.b32 %r0, %r1, %r2, %r3, 0xE8;", 0xff00ff00, 0xf0f0f0f0, 0xcccccccc), 0xfcc0fcc0u);
  EXPECT_EQ(run32("prmt.b32 %r0, %r1, %r2, 0x7531;", 0x33221100, 0x77665544), 0x77553311u);
  EXPECT_EQ(run32("prmt.b32 %r0, %r1, %r2, 0x8888;", 0x00000080, 0), 0xffffffffu);
  EXPECT_EQ(run32("prmt.b32.f4e %r0, %r1, %r2, 3;", 0x33221100, 0x77665544), 0x66554433u);
  EXPECT_EQ(run32("bfe.u32 %r0, %r1, 4, 8;", 0x12345678), 0x67u);
  EXPECT_EQ(run32("bfe.s32 %r0, %r1, 28, 8;", 0x80000000), 0xfffffff8u);
  EXPECT_EQ(run32("bfi.b32 %r0, %r1, %r2, 8, 8;", 0xab, 0x11111111), 0x1111ab11u);
  EXPECT_EQ(run32("bfind.u32 %r0, %r1;", 0x00800000), 23u);
  EXPECT_EQ(run32("bfind.s32 %r0, %r1;", 0xffffffff), 0xffffffffu);
  EXPECT_EQ(run32("bfind.shiftamt.u32 %r0, %r1;", 0x00800000), 8u);
  EXPECT_EQ(run32("clz.b32 %r0, %r1;", 0), 32u);
  EXPECT_EQ(run32("popc.b32 %r0, %r1;", 0xf0f0), 8u);
  EXPECT_EQ(run32("brev.b32 %r0, %r1;", 1), 0x80000000u);
  EXPECT_EQ(run32("not.b32 %r0, %r1;", 0xf), 0xfffffff0u);
  EXPECT_EQ(run32("mov.b32 {%h3, %h4}, %r1;\nmov.b32 %r0, {%h4, %h3};", 0x12345678), 0x56781234u);
}

TEST(Arithmetic, Comparison) {
  EXPECT_EQ(run32("setp.lt.s32 %p0, %r1, %r2;\nselp.b32 %r0, 1, 2, %p0;", 0xffffffff, 0), 1u);
  EXPECT_EQ(run32("setp.lo.u32 %p0, %r1, %r2;\nselp.b32 %r0, 1, 2, %p0;", 0xffffffff, 0), 2u);
  EXPECT_EQ(run32("setp.ne.f32 %p0, %f1, %f2;\nselp.b32 %r0, 1, 2, %p0;", kNan, 0), 2u);
  EXPECT_EQ(run32("setp.neu.f32 %p0, %f1, %f2;\nselp.b32 %r0, 1, 2, %p0;", kNan, 0), 1u);
  EXPECT_EQ(run32("setp.eq.f32 %p0, %f1, %f2;\nselp.b32 %r0, 1, 2, %p0;", f(-0.f), f(0.f)), 1u);
  EXPECT_EQ(run32("setp.eq.ftz.f32 %p0, %f1, %f2;\nselp.b32 %r0, 1, 2, %p0;", 1, 0), 1u);
  EXPECT_EQ(run32("setp.ne.s32 %p1, %r2, 0;\nsetp.gt.and.s32 %p0|%p2, %r1, 3, %p1;\nselp.b32 %r0, 1, 2, "
                  "%p0;\n@%p2 add.u32 "
                  "%r0, %r0, 10;",
                  2, 1),
            12u);
  EXPECT_EQ(run32("set.gt.u32.f32 %r0, %f1, %f2;", f(2), f(1)), 0xffffffffu);
  EXPECT_EQ(run32("setp.num.f32 %p0, %f1, %f2;\nselp.b32 %r0, 1, 2, !%p0;", kNan, 0), 1u);
}

TEST(Arithmetic, Float) {
  EXPECT_EQ(run32("add.f32 %f0, %f1, %f2;", f(1), f(2)), f(3));
  EXPECT_EQ(run32("add.f32 %f0, %f1, %f2;", 0x7f800000, 0xff800000), kNan);
  EXPECT_EQ(run32("add.rz.f32 %f0, %f1, %f2;", f(1), f(0x1.8p-24f)), f(1));
  EXPECT_EQ(run32("add.rp.f32 %f0, %f1, %f2;", f(1), f(0x1p-30f)), f(1 + 0x1p-23f));
  EXPECT_EQ(run32("add.rm.f32 %f0, %f1, %f2;", f(-1), f(-0x1p-30f)), f(-1 - 0x1p-23f));
  EXPECT_EQ(run32("mul.f32 %f0, %f1, %f2;", 1, f(1)), 1u);
  EXPECT_EQ(run32("mul.ftz.f32 %f0, %f1, %f2;", 1, f(1)), 0u);
  EXPECT_EQ(run32("mul.sat.f32 %f0, %f1, %f2;", f(2), f(3)), f(1));
  EXPECT_EQ(run32("fma.rn.f32 %f0, %f1, %f2, %f3;", f(1 + 0x1p-12f), f(1 + 0x1p-12f), f(-1)),
            f(0x1p-11f + 0x1p-24f));
  EXPECT_EQ(run32("max.f32 %f0, %f1, %f2;", kNan, f(1)), f(1));
  EXPECT_EQ(run32("max.NaN.f32 %f0, %f1, %f2;", kNan, f(1)), kNan);
  EXPECT_EQ(run32("min.f32 %f0, %f1, %f2;", f(0.f), f(-0.f)), f(-0.f));
  EXPECT_EQ(run32("ex2.approx.ftz.f32 %f0, %f1;", f(-3)), f(0.125f));
  EXPECT_EQ(run32("ex2.approx.ftz.f32 %f0, %f1;", 0xff800000), 0u);
  EXPECT_EQ(run32("ex2.approx.ftz.f32 %f0, %f1;", f(-140)), 0u);
  EXPECT_EQ(run32("lg2.approx.f32 %f0, %f1;", f(8)), f(3));
  EXPECT_EQ(run32("rcp.rn.f32 %f0, %f1;", f(4)), f(0.25f));
  EXPECT_EQ(run32("div.full.f32 %f0, %f1, %f2;", f(1), f(3)), f(1.f / 3.f));
  EXPECT_EQ(run32("div.approx.f32 %f0, %f1, %f2;", f(1), f(0x1p127f)), f(0.f));
  EXPECT_EQ(run32("neg.f32 %f0, %f1;", f(1)), f(-1));
  EXPECT_EQ(run32("fma.rn.bf16x2 %r0, %r1, %r2, %r3;", 0x3f803f80, 0x40004000, 0x3f800000), 0x40404000u);
  EXPECT_EQ(run32("add.f16x2 %r0, %r1, %r2;", 0x3c004000, 0x3c003c00), 0x40004200u);
}

TEST(Arithmetic, Conversions) {
  EXPECT_EQ(run32("cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f2;\ncvt.u32.u16 %r0, %h3;", f(1), f(500)),
            0x387eu);
  EXPECT_EQ(run32("cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f2;\ncvt.u32.u16 %r0, %h3;", f(-INFINITY), kNan),
            0xfe7fu);
  // 17 lies between 16 and 18: to even. 2^-10 is half the smallest subnormal: to even, 0.
  EXPECT_EQ(run32("cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f2;\ncvt.u32.u16 %r0, %h3;", f(17), f(0x1p-10f)),
            0x5800u);
  EXPECT_EQ(run32("cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f2;\ncvt.u32.u16 %r0, %h3;", f(464), f(0x1.8p-10f)),
            0x7e01u);
  EXPECT_EQ(run32("cvt.rn.satfinite.e5m2x2.f32 %h3, %f1, %f2;\ncvt.u32.u16 %r0, %h3;", f(1e6f), f(1)),
            0x7b3cu);
  EXPECT_EQ(run32("cvt.rn.f16x2.e4m3x2 %r0, %h1;", 0x7f38), 0x7fff3c00u);
  EXPECT_EQ(run32("cvt.rn.bf16x2.f32 %r0, %f1, %f2;", f(1), f(1 + 0x1p-8f)), 0x3f803f80u);
  EXPECT_EQ(run32("cvt.rn.f16.f32 %h3, %f1;\ncvt.u32.u16 %r0, %h3;", f(65520)), 0x7c00u);
  EXPECT_EQ(run32("cvt.rz.f16.f32 %h3, %f1;\ncvt.u32.u16 %r0, %h3;", f(65520)), 0x7bffu);
  EXPECT_EQ(run32("cvt.f32.f16 %f0, %h1;", 0x0001), f(0x1p-24f));
  EXPECT_EQ(run32("cvt.rni.s32.f32 %r0, %f1;", f(2.5f)), 2u);
  EXPECT_EQ(run32("cvt.rzi.s32.f32 %r0, %f1;", f(-2.9f)), static_cast<uint32_t>(-2));
  EXPECT_EQ(run32("cvt.rzi.s32.f32 %r0, %f1;", f(1e20f)), 0x7fffffffu);
  EXPECT_EQ(run32("cvt.rzi.u32.f32 %r0, %f1;", kNan), 0u);
  EXPECT_EQ(run32("cvt.rn.f32.s32 %f0, %r1;", 0x7fffffff), f(2147483648.f));
  EXPECT_EQ(run32("cvt.rz.f32.s32 %f0, %r1;", 0x7fffffff), f(2147483520.f));
  EXPECT_EQ(run32("cvt.s32.s8 %r0, %r1;", 0x80), 0xffffff80u);
  EXPECT_EQ(run32("cvt.u32.u8 %r0, %r1;", 0x1ff), 0xffu);
  EXPECT_EQ(run32("cvt.sat.u8.s32 %r0, %r1;", 300), 255u);
  EXPECT_EQ(run32("cvt.rna.tf32.f32 %r0, %f1;", f(1 + 0x1p-11f)), f(1 + 0x1p-10f));
  EXPECT_EQ(run64("cvt.s64.s32 %rd0, %r1;", 0xffffffff), ~uint64_t{0});
  EXPECT_EQ(run64("cvt.rn.f64.u64 %d0, %rd1;\nmov.b64 %rd0, %d0;", 3), std::bit_cast<uint64_t>(3.0));
}

TEST(Arithmetic, LogicWithPredicateAndDotProductOfHalves) {
  Emulator e;
  e.config.block = {1, 1, 1};
  uint64_t out = e.upload(std::vector<uint32_t>(4, 9));
  e.run(kernel(R"(mov.u32 %r1, 0xfffe0003;
  mov.u32 %r2, 0x80ff02fe;
  mov.u32 %r3, 0;
  setp.eq.u32 %p1, %r3, 1;
  lop3.or.b32 %r4|%p2, %r1, %r2, %r3, 0xc0, %p1;
  lop3.and.b32 _|%p3, %r1, %r2, %r3, 0xc0, %p1;
  selp.u32 %r5, 1, 0, %p2;
  selp.u32 %r6, 1, 0, %p3;
  shl.b32 %r6, %r6, 4;
  or.b32 %r5, %r5, %r6;
  dp2a.lo.s32.s32 %r6, %r1, %r2, 100;
  dp2a.hi.u32.u32 %r7, %r1, %r2, 1;
  ld.param.u64 %rd1, [p0];
  st.global.v4.u32 [%rd1], {%r4, %r5, %r6, %r7};)"),
        {out});
  ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
  EXPECT_EQ(e.download<uint32_t>(out, 4),
            (std::vector<uint32_t>{0x80fe0002, 1, 100 - 6 - 4, 1 + 3 * 255 + 0xfffe * 128}));
}

}  // namespace
}  // namespace mla::emu

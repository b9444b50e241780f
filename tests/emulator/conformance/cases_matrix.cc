// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions. Every multiply-add is tried twice: on small integers, whose sums are exact in
// any order (this checks the layout of every element), and on ordinary numbers, whose sums depend on
// the accumulator (this bounds the freedom).
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {
namespace {

std::string list(const char* name, size_t first, size_t count) {
  std::string text = "{";
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::string(name) + std::to_string(first + i);
  return text + "}";
}

// Relative to the largest result of the case. mma.sync adds exact products in one step and drops
// bits far below the largest; the emulator has the accumulator of wgmma on 8-bit floats.
constexpr double kMmaTolerance = 0x1p-21;
constexpr double kWgmmaTolerance = 0x1p-21;
constexpr double kWgmmaFp8Tolerance = 0x1p-60;  // none

struct Mma {
  const char* shape;
  const char* d;  // type of D and C
  const char* a;
  const char* b;
  size_t d_count, a_count, b_count;  // registers
};

// Copies `bytes_per_thread` (a multiple of 16) of the source to shared memory at s + tidx *
// bytes_per_thread, each word masked to numbers of one binade: ±1, ±1.5 for e4m3, ±{1, ..., 1.875}
// for bf16. Products and sums are exact.
std::string fill(uint32_t bytes_per_thread, const std::string& keep, const std::string& set) {
  std::string text = " mov.u32 r0, s; mul.lo.u32 r1, tidx, " + std::to_string(bytes_per_thread) +
                     "; add.u32 r2, r0, r1; cvt.u64.u32 d1, r1; add.u64 d1, psrc, d1;\n";
  for (uint32_t at = 0; at < bytes_per_thread; at += 16) {
    const std::string offset = std::to_string(at);
    text += " ld.v4.b32 {r4, r5, r6, r7}, [d1+" + offset + "];\n";
    for (const char* r : {"r4", "r5", "r6", "r7"}) {
      text += std::string(" and.b32 ") + r + ", " + r + ", " + keep + "; or.b32 " + r + ", " + r + ", " +
              set + ";\n";
    }
    text += " st.shared.v4.b32 [r2+" + offset + "], {r4, r5, r6, r7};\n";
  }
  return text;
}

// A shared memory matrix descriptor in `d`: start address register + offset, leading and stride
// byte offsets, swizzle (0 none, 1 128 B, 2 64 B, 3 32 B).
std::string descriptor(const std::string& d, uint32_t offset, uint32_t leading, uint32_t stride,
                       uint32_t swizzle) {
  const uint64_t fixed = uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | uint64_t(swizzle) << 62;
  return " add.u32 r8, r0, " + std::to_string(offset) +
         "; shr.u32 r8, r8, 4; and.b32 r8, r8, 0x3fff; cvt.u64.u32 " + d + ", r8; or.b64 " + d + ", " + d +
         ", " + std::to_string(int64_t(fixed)) + ";\n";
}

}  // namespace

void add_matrix_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body) -> Case& {
    Case c;
    c.name = name;
    c.in = std::move(in);
    c.out = std::move(out);
    c.body = std::move(body);
    c.grid = 4;
    c.block = 32;
    cases->push_back(std::move(c));
    return cases->back();
  };

  // ---- ldmatrix, stmatrix, movmatrix: 2 KiB of the source in shared memory, scattered rows
  const std::string filled =
      " .shared .align 128 .b8 s[2048];\n mov.u32 r0, s; mul.wide.u32 d1, gidx, 64; add.u64 d1, psrc, d1; "
      "shl.b32 r1, tidx, 6; "
      "add.u32 r1, r0, r1;\n ld.v4.b32 {r4, r5, r6, r7}, [d1]; st.shared.v4.b32 [r1], {r4, r5, r6, r7};\n "
      "ld.v4.b32 {r4, r5, r6, "
      "r7}, [d1+16]; st.shared.v4.b32 [r1+16], {r4, r5, r6, r7};\n ld.v4.b32 {r4, r5, r6, r7}, [d1+32]; "
      "st.shared.v4.b32 [r1+32], "
      "{r4, r5, r6, r7};\n ld.v4.b32 {r4, r5, r6, r7}, [d1+48]; st.shared.v4.b32 [r1+48], {r4, r5, r6, "
      "r7};\n bar.warp.sync "
      "0xffffffff;\n mul.lo.u32 r2, lane, 5; and.b32 r2, r2, 31; shl.b32 r2, r2, 6; shr.u32 r3, lane, 2; "
      "and.b32 r3, r3, 3; "
      "shl.b32 r3, r3, 4; add.u32 r2, r2, r3; add.u32 r2, r0, r2;\n ";
  for (const char* trans : {"", ".trans"}) {
    for (const size_t count : {1u, 2u, 4u}) {
      const std::string op =
          std::string("ldmatrix.sync.aligned.m8n8.x") + std::to_string(count) + trans + ".shared.b16";
      add(op, {}, std::vector<std::string>(count, "b32"),
          filled + op + " " + list("o", 0, count) + ", [r2];");
    }
    for (const size_t count : {1u, 2u, 4u}) {
      const std::string op =
          std::string("stmatrix.sync.aligned.m8n8.x") + std::to_string(count) + trans + ".shared.b16";
      add(op, std::vector<std::string>(count, "b32"), {"b32", "b32", "b32", "b32"},
          " .shared .align 128 .b8 s[512];\n mov.u32 r0, s; shl.b32 r1, lane, 4; add.u32 r1, r0, r1; mov.b32 "
          "r4, lane; "
          "st.shared.v4.b32 [r1], {r4, r4, r4, r4}; bar.warp.sync 0xffffffff;\n mul.lo.u32 r2, lane, 5; "
          "and.b32 r2, r2, 31; shl.b32 "
          "r2, r2, 4; add.u32 r2, r0, r2;\n " +
              op + " [r2], " + list("i", 0, count) +
              ";\n bar.warp.sync 0xffffffff; ld.shared.v4.b32 {o0, o1, o2, o3}, [r1];");
    }
  }
  add("movmatrix.sync.aligned.m8n8.trans.b16", {"b32"}, {"b32"},
      "movmatrix.sync.aligned.m8n8.trans.b16 o0, i0;");

  // ---- mma.sync
  const Mma kMmas[] = {
      {"m16n8k16", "f32", "f16", "f16", 4, 4, 2},   {"m16n8k16", "f32", "bf16", "bf16", 4, 4, 2},
      {"m16n8k8", "f32", "f16", "f16", 4, 2, 1},    {"m16n8k8", "f32", "bf16", "bf16", 4, 2, 1},
      {"m16n8k32", "f32", "e4m3", "e4m3", 4, 4, 2}, {"m16n8k32", "f32", "e5m2", "e5m2", 4, 4, 2},
      {"m16n8k32", "f32", "e4m3", "e5m2", 4, 4, 2}, {"m16n8k32", "f32", "e5m2", "e4m3", 4, 4, 2},
      {"m16n8k8", "f32", "tf32", "tf32", 4, 4, 2},  {"m16n8k4", "f32", "tf32", "tf32", 4, 2, 1},
  };
  for (const Mma& m : kMmas) {
    const std::string a = m.a, b = m.b;
    const std::string op =
        std::string("mma.sync.aligned.") + m.shape + ".row.col.f32." + a + "." + b + ".f32";
    const auto packed = [](const std::string& type, const char* kind) {
      return (type == "tf32" ? std::string("f32") : type + (type[0] == 'e' ? "x4" : "x2")) + kind;
    };
    for (const char* kind : {"i", "n"}) {
      std::vector<std::string> in(m.a_count, packed(a, kind));
      in.insert(in.end(), m.b_count, packed(b, kind));
      in.insert(in.end(), 4, std::string("f32") + kind);
      Case& c = add(op + (*kind == 'i' ? " integers" : " numbers"), in, std::vector<std::string>(4, "f32"),
                    op + " {o0, o1, o2, o3}, " + list("i", 0, m.a_count) + ", " +
                        list("i", m.a_count, m.b_count) + ", " + list("i", m.a_count + m.b_count, 4) + ";");
      if (*kind == 'n') {
        c.compare = Compare::kRelative;
        c.tolerance = kMmaTolerance;
        if (a == "tf32") {
          // The operands' low bits are not defined to be ignored: round first.
          std::string rounding;
          for (size_t i = 0; i < m.a_count + m.b_count; ++i) {
            rounding += "cvt.rna.tf32.f32 i" + std::to_string(i) + ", i" + std::to_string(i) + "; ";
          }
          c.body = rounding + "\n " + c.body;
        }
      }
    }
  }
  // C as an accumulator over several steps, as kernels use it.
  {
    const std::string op = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32";
    Case& c = add(op + " chained", {"e4m3x4i", "e4m3x4i", "e4m3x4i", "e4m3x4i", "e4m3x4i", "e4m3x4i"},
                  std::vector<std::string>(4, "f32"),
                  " mov.f32 o0, 0f00000000; mov.f32 o1, 0f00000000; mov.f32 o2, 0f00000000; mov.f32 o3, "
                  "0f00000000;\n " +
                      op + " {o0, o1, o2, o3}, {i0, i1, i2, i3}, {i4, i5}, {o0, o1, o2, o3};\n " + op +
                      " {o0, o1, o2, o3}, {i3, i2, i1, i0}, {i5, i4}, {o0, o1, o2, o3};");
    (void)c;
  }
  // Special values: NaN and infinity must come out as hardware gives them.
  for (const char* type : {"bf16", "f16"}) {
    const std::string op = std::string("mma.sync.aligned.m16n8k16.row.col.f32.") + type + "." + type + ".f32";
    const std::string any = std::string(type) + "x2";
    Case& c = add(op + " special values", {any, any, any, any, any, any}, std::vector<std::string>(4, "f32"),
                  " mov.f32 r0, 0f00000000;\n " + op +
                      " {o0, o1, o2, o3}, {i0, i1, i2, i3}, {i4, i5}, {r0, r0, r0, r0};");
    c.compare = Compare::kRelative;
    c.tolerance = kMmaTolerance;
  }
  add("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 integers",
      {"f16x2i", "f16x2i", "f16x2i", "f16x2i", "f16x2i", "f16x2i", "f16x2i", "f16x2i"}, {"b32", "b32"},
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {o0, o1}, {i0, i1, i2, i3}, {i4, i5}, {i6, i7};");
  for (const char* types : {"s8.s8", "u8.u8", "s8.u8", "u8.s8"}) {
    for (const char* saturate : {"", ".satfinite"}) {
      const std::string op =
          std::string("mma.sync.aligned.m16n8k32.row.col") + saturate + ".s32." + types + ".s32";
      add(op, {"b8x4", "b8x4", "b8x4", "b8x4", "b8x4", "b8x4", "s32", "s32", "s32", "s32"},
          {"b32", "b32", "b32", "b32"},
          op + " {o0, o1, o2, o3}, {i0, i1, i2, i3}, {i4, i5}, {i6, i7, i8, i9};");
    }
  }
  add("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32", {"b8x4", "b8x4", "b8x4", "s32", "s32", "s32", "s32"},
      {"b32", "b32", "b32", "b32"},
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {o0, o1, o2, o3}, {i0, i1}, {i2}, {i3, i4, i5, i6};");

  // ---- wgmma
  const std::string e4m3_keep = "0x84848484", e4m3_set = "0x38383838";
  const std::string bf16_keep = "0x80708070", bf16_set = "0x3f803f80";
  const auto wgmma = [&](const std::string& label, const std::string& types, bool fp8, uint32_t n,
                         const std::string& smem_fill, const std::string& descriptors, const std::string& a,
                         const std::string& immediates, std::vector<std::string> in = {}) -> Case& {
    const std::string op =
        "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + (fp8 ? "k32" : "k16") + ".f32." + types;
    std::string zero;
    for (size_t i = 0; i < n / 2; ++i) zero += " mov.b32 o" + std::to_string(i) + ", 0;";
    Case& c = add(op + " " + label, std::move(in), std::vector<std::string>(n / 2, "f32"),
                  smem_fill + " fence.proxy.async.shared::cta; bar.sync 0;\n" + descriptors + zero +
                      "\n setp.ne.u32 p0, r0, r0;\n wgmma.fence.sync.aligned;\n " + op + " " +
                      list("o", 0, n / 2) + ", " + a + ", d3, p0, " + immediates +
                      ";\n wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
    c.grid = 2;
    c.block = 128;
    return c;
  };
  const std::string smem8k = " .shared .align 1024 .b8 s[16384];\n";
  // No swizzle: core matrices of 8 rows x 16 bytes, 128 bytes each; leading: next along K, stride: next along
  // M or N.
  for (const uint32_t n : {8u, 16u, 64u, 128u, 256u}) {
    wgmma("no swizzle", "e4m3.e4m3", true, n, smem8k + fill(128, e4m3_keep, e4m3_set),
          descriptor("d2", 0, 128, 256, 0) + descriptor("d3", 4096, 128, 256, 0), "d2", "1, 1");
    wgmma("no swizzle", "bf16.bf16", false, n, smem8k + fill(128, bf16_keep, bf16_set),
          descriptor("d2", 0, 128, 256, 0) + descriptor("d3", 4096, 128, 256, 0), "d2", "1, 1, 0, 0");
  }
  wgmma("no swizzle, other offsets", "bf16.bf16", false, 32, smem8k + fill(128, bf16_keep, bf16_set),
        descriptor("d2", 0, 1024, 128, 0) + descriptor("d3", 8192, 2048, 256, 0), "d2", "1, 1, 0, 0");
  // Swizzled, K-major: rows of 128, 64 or 32 bytes; stride: 8 rows. The second slice along K starts 32 bytes
  // on.
  const struct {
    const char* name;
    uint32_t mode, row;
  } swizzles[] = {{"128B", 1, 128}, {"64B", 2, 64}, {"32B", 3, 32}};
  for (const auto& s : swizzles) {
    for (const uint32_t slice : {0u, 32u, 96u}) {
      if (slice + 32 > s.row) continue;
      const std::string label = std::string("swizzle ") + s.name + " slice at " + std::to_string(slice);
      const std::string descriptors = descriptor("d2", slice, 16, s.row * 8, s.mode) +
                                      descriptor("d3", 8192 + slice, 16, s.row * 8, s.mode);
      wgmma(label, "e4m3.e4m3", true, 32, smem8k + fill(128, e4m3_keep, e4m3_set), descriptors, "d2", "1, 1");
      wgmma(label, "bf16.bf16", false, 32, smem8k + fill(128, bf16_keep, bf16_set), descriptors, "d2",
            "1, 1, 0, 0");
    }
    // MN-major B and A (16-bit types only): rows of K, `row` bytes of N or M.
    const uint32_t n = s.row / 2;
    wgmma(std::string("transposed B, swizzle ") + s.name, "bf16.bf16", false, n,
          smem8k + fill(128, bf16_keep, bf16_set),
          descriptor("d2", 0, 16, s.row * 8, s.mode) + descriptor("d3", 8192, 4096, s.row * 8, s.mode), "d2",
          "1, 1, 0, 1");
    if (s.mode == 1) {
      wgmma(std::string("transposed A and B, swizzle ") + s.name, "bf16.bf16", false, n,
            smem8k + fill(128, bf16_keep, bf16_set),
            descriptor("d2", 0, 4096, s.row * 8, s.mode) + descriptor("d3", 8192, 4096, s.row * 8, s.mode),
            "d2", "1, 1, 1, 1");
    }
  }
  // A from registers, negated operands, accumulation into D.
  wgmma("A in registers", "bf16.bf16", false, 16, smem8k + fill(128, bf16_keep, bf16_set),
        descriptor("d3", 0, 128, 256, 0), "{i0, i1, i2, i3}", "1, 1, 0",
        {"bf16x2i", "bf16x2i", "bf16x2i", "bf16x2i"});
  wgmma("A in registers", "e4m3.e4m3", true, 16, smem8k + fill(128, e4m3_keep, e4m3_set),
        descriptor("d3", 0, 128, 256, 0), "{i0, i1, i2, i3}", "1, 1",
        {"e4m3x4i", "e4m3x4i", "e4m3x4i", "e4m3x4i"});
  wgmma("A in registers", "f16.f16", false, 16, smem8k + fill(128, "0x80708070", "0x3c003c00"),
        descriptor("d3", 0, 128, 256, 0), "{i0, i1, i2, i3}", "1, 1, 0",
        {"f16x2i", "f16x2i", "f16x2i", "f16x2i"});
  wgmma("negated A", "bf16.bf16", false, 8, smem8k + fill(128, bf16_keep, bf16_set),
        descriptor("d2", 0, 128, 256, 0) + descriptor("d3", 4096, 128, 256, 0), "d2", "-1, 1, 0, 0");
  {
    const std::string op = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16";
    Case& c =
        wgmma("accumulating", "bf16.bf16", false, 8, smem8k + fill(128, bf16_keep, bf16_set),
              descriptor("d2", 0, 128, 256, 0) + descriptor("d3", 4096, 128, 256, 0), "d2", "1, 1, 0, 0");
    c.body.insert(c.body.find(" wgmma.commit_group"),
                  " setp.eq.u32 p1, r0, r0;\n " + op + " {o0, o1, o2, o3}, d2, d3, p1, 1, 1, 0, 0;\n");
  }
  // Ordinary numbers in registers against numbers in shared memory.
  for (const bool fp8 : {false, true}) {
    Case& c = wgmma("numbers", fp8 ? "e4m3.e4m3" : "bf16.bf16", fp8, 8,
                    " .shared .align 1024 .b8 s[16384];\n mov.u32 r0, s; shl.b32 r1, tidx, 2; add.u32 r1, "
                    "r0, r1; st.shared.b32 [r1], i4;\n",
                    descriptor("d3", 0, 128, 256, 0), "{i0, i1, i2, i3}", fp8 ? "1, 1" : "1, 1, 0",
                    std::vector<std::string>(5, fp8 ? "e4m3x4n" : "bf16x2n"));
    c.compare = Compare::kRelative;
    c.tolerance = fp8 ? kWgmmaFp8Tolerance : kWgmmaTolerance;
  }
}

}  // namespace mla::conformance

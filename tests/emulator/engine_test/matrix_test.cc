// SPDX-License-Identifier: Apache-2.0
//
// Fragment layouts, written out from the tables of the PTX manual, and products against a plain loop.
#include <bit>
#include <cmath>
#include <random>

#include "tests/emulator/engine/fp.h"
#include "tests/emulator/engine_test/harness.h"

namespace mla::emu {
namespace {

// Copies p1 (bytes) into shared memory `buffer`, runs `body` with %r1 = lane, %r2 = buffer, and stores %r10
// on to p0[lane * 4 + i].
std::string tile_kernel(const std::string& body, const std::string& target = "sm_120a") {
  return kernel(R"(mov.u32 %r1, %laneid;
  mov.u32 %r2, buffer;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  mov.u32 %r3, 0;
  COPY:
  shl.b32 %r4, %r1, 4;
  add.u32 %r4, %r4, %r3;
  cvt.u64.u32 %rd3, %r4;
  add.u64 %rd3, %rd3, %rd2;
  ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd3];
  add.u32 %r9, %r2, %r4;
  st.shared.v4.u32 [%r9], {%r5, %r6, %r7, %r8};
  add.u32 %r3, %r3, 512;
  setp.lt.u32 %p1, %r3, 1024;
  @%p1 bra COPY;
  bar.warp.sync -1;
  mov.u32 %r10, 0;
  mov.u32 %r11, 0;
  mov.u32 %r12, 0;
  mov.u32 %r13, 0;
)" + body + R"(
  shl.b32 %r4, %r1, 4;
  cvt.u64.u32 %rd3, %r4;
  add.u64 %rd3, %rd3, %rd1;
  st.global.v4.u32 [%rd3], {%r10, %r11, %r12, %r13};)",
                "", ".shared .align 128 .b8 buffer[1024];\n", target);
}

struct Tile {
  std::vector<uint8_t> in = std::vector<uint8_t>(1024);
  std::vector<uint32_t> out;
  void run(const std::string& body) {
    std::mt19937 rng(3);
    for (auto& b : in) b = static_cast<uint8_t>(rng());
    Emulator e;
    uint64_t to = e.upload(std::vector<uint32_t>(128, 0)), from = e.upload(in);
    e.run(tile_kernel(body), {to, from});
    ASSERT_TRUE(e.report.ok()) << e.report.fault.text();
    out = e.download<uint32_t>(to, 128);
  }
  uint32_t half(uint32_t matrix, uint32_t row, uint32_t column) const {
    uint16_t v;
    std::memcpy(&v, in.data() + matrix * 128 + row * 16 + column * 2, 2);
    return v;
  }
};

TEST(Matrix, LdmatrixB16) {
  Tile t;
  t.run(
      "shl.b32 %r20, %r1, 4;\nadd.u32 %r20, %r20, %r2;\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, "
      "%r11, %r12, %r13}, [%r20];");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 4; ++m) {
      uint32_t row = lane / 4, column = lane % 4 * 2;
      EXPECT_EQ(t.out[lane * 4 + m], t.half(m, row, column) | t.half(m, row, column + 1) << 16);
    }
  }
  t.run(
      "shl.b32 %r20, %r1, 4;\nadd.u32 %r20, %r20, %r2;\nldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 "
      "{%r10, %r11}, [%r20];");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 2; ++m) {
      uint32_t row = lane % 4 * 2, column = lane / 4;
      EXPECT_EQ(t.out[lane * 4 + m], t.half(m, row, column) | t.half(m, row + 1, column) << 16);
    }
  }
}

TEST(Matrix, LdmatrixB8Transposed) {
  Tile t;
  t.run(
      "shl.b32 %r20, %r1, 4;\nadd.u32 %r20, %r20, %r2;\nldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 "
      "{%r10, %r11, %r12, %r13}, "
      "[%r20];");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t r = 0; r < 4; ++r) {
      uint32_t want = 0;
      for (uint32_t i = 0; i < 4; ++i) {
        uint32_t row = lane % 4 * 4 + i, column = lane / 4 + 8 * (r % 2);
        want |= uint32_t{t.in[r / 2 * 256 + row * 16 + column]} << (8 * i);
      }
      EXPECT_EQ(t.out[lane * 4 + r], want);
    }
  }
}

TEST(Matrix, StmatrixIsTheInverseOfLdmatrix) {
  Tile t;
  t.run(R"(shl.b32 %r20, %r1, 4;
  add.u32 %r20, %r20, %r2;
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r21, %r22, %r23, %r24}, [%r20];
  bar.warp.sync -1;
  stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r20], {%r21, %r22, %r23, %r24};
  bar.warp.sync -1;
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r20];)");
  EXPECT_EQ(std::memcmp(t.out.data(), t.in.data(), 512), 0);
}

TEST(Matrix, LdmatrixChecksEveryRow) {
  Emulator e;
  EXPECT_TRUE(
      faults_with(e.run(kernel("mov.u32 %r2, buffer;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
                               "", ".shared .align 128 .b8 buffer[1024];\n")),
                  FaultKind::kUnwritten, "read of 16 bytes at shared address 0x400 (buffer + 0)"));
}

// Fills fragments from row-major A [16][k] and column-major B [8][k], of `bytes` bytes an element.
struct Mma {
  std::vector<uint8_t> a, b;
  std::vector<float> c = std::vector<float>(128);
  std::vector<uint32_t> words;  // per lane: a0-3, b0-1, c0-3, scale a, scale b
  uint32_t k, bytes;

  Mma(uint32_t k_size, uint32_t element_bytes)
      : a(16 * k_size * element_bytes), b(8 * k_size * element_bytes), k(k_size), bytes(element_bytes) {}

  void pack(const std::vector<uint8_t>& scale_a, const std::vector<uint8_t>& scale_b) {
    words.assign(32 * 12, 0);
    uint32_t per = 4 / bytes;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t* w = &words[lane * 12];
      for (uint32_t r = 0; r < 4; ++r)
        std::memcpy(&w[r], &a[((lane / 4 + 8 * (r % 2)) * k + lane % 4 * per + r / 2 * 4 * per) * bytes], 4);
      for (uint32_t r = 0; r < 2; ++r)
        std::memcpy(&w[4 + r], &b[(lane / 4 * k + lane % 4 * per + r * 4 * per) * bytes], 4);
      for (uint32_t r = 0; r < 4; ++r)
        w[6 + r] = f32_bits(c[(lane / 4 + 8 * (r / 2)) * 8 + lane % 4 * 2 + r % 2]);
      // Threads 2 and 3 of a quad hold the scales of A in byte 1, thread 1 that of B in byte 2.
      if (lane % 4 >= 2) w[10] = uint32_t{scale_a[lane / 4 + 8 * (lane % 4 - 2)]} << 8;
      if (lane % 4 == 1) w[11] = uint32_t{scale_b[lane / 4]} << 16;
    }
  }

  std::vector<float> run(const std::string& instruction,
                         MmaAccumulator accumulator = MmaAccumulator::kExact) {
    Emulator e;
    e.config.mma_accumulator = accumulator;
    uint64_t in = e.upload(words), out = e.upload(std::vector<float>(128, 0));
    e.run(kernel(R"(mov.u32 %r1, %laneid;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  mul.wide.u32 %rd3, %r1, 48;
  add.u64 %rd3, %rd3, %rd1;
  ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd3];
  ld.global.v4.u32 {%r14, %r15, %r16, %r17}, [%rd3+16];
  ld.global.v4.u32 {%r18, %r19, %r20, %r21}, [%rd3+32];
  mov.b32 %f0, %r16;
  mov.b32 %f1, %r17;
  mov.b32 %f2, %r18;
  mov.b32 %f3, %r19;
)" + instruction +
                 R"(
  mul.wide.u32 %rd3, %r1, 16;
  add.u64 %rd3, %rd3, %rd2;
  st.global.v4.f32 [%rd3], {%f0, %f1, %f2, %f3};)"),
          {in, out});
    EXPECT_TRUE(e.report.ok()) << e.report.fault.text();
    EXPECT_EQ(e.report.macs, 128u * k);
    auto raw = e.download<float>(out, 128);
    std::vector<float> d(128);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t r = 0; r < 4; ++r)
        d[(lane / 4 + 8 * (r / 2)) * 8 + lane % 4 * 2 + r % 2] = raw[lane * 4 + r];
    }
    return d;
  }
};

uint8_t random_e4m3(std::mt19937& rng) {
  uint8_t v;
  do {
    v = static_cast<uint8_t>(rng());
  } while ((v & 0x7f) == 0x7f);
  return v;
}

TEST(Matrix, MmaE4m3) {
  std::mt19937 rng(5);
  Mma mma(32, 1);
  for (auto& v : mma.a) v = random_e4m3(rng);
  for (auto& v : mma.b) v = random_e4m3(rng);
  for (auto& v : mma.c) v = static_cast<float>(rng() % 1000);
  mma.pack(std::vector<uint8_t>(16, 0), std::vector<uint8_t>(8, 0));
  auto d = mma.run(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, "
      "{%r14, "
      "%r15}, {%f0, %f1, %f2, %f3};");
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      float want = mma.c[i * 8 + j];
      for (uint32_t k = 0; k < 32; ++k)
        want += e4m3_to_f32(mma.a[i * 32 + k]) * e4m3_to_f32(mma.b[j * 32 + k]);
      EXPECT_EQ(d[i * 8 + j], want) << i << " " << j;
    }
  }
}

TEST(Matrix, MmaBlockScaled) {
  std::mt19937 rng(6);
  Mma mma(32, 1);
  std::vector<uint8_t> sa(16), sb(8);
  for (auto& v : mma.a) v = random_e4m3(rng);
  for (auto& v : mma.b) v = random_e4m3(rng);
  for (auto& v : mma.c) v = static_cast<float>(rng() % 1000);
  for (auto& v : sa) v = static_cast<uint8_t>(120 + rng() % 16);
  for (auto& v : sb) v = static_cast<uint8_t>(120 + rng() % 16);
  mma.pack(sa, sb);
  auto d = mma.run(
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
      "{%f0, %f1, %f2, "
      "%f3}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f0, %f1, %f2, %f3}, {%r20}, {1, 1}, {%r21}, {2, 1};");
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      float sum = 0;
      for (uint32_t k = 0; k < 32; ++k)
        sum += e4m3_to_f32(mma.a[i * 32 + k]) * e4m3_to_f32(mma.b[j * 32 + k]);
      float want = sum * std::ldexp(1.f, sa[i] - 127) * std::ldexp(1.f, sb[j] - 127) + mma.c[i * 8 + j];
      EXPECT_EQ(d[i * 8 + j], want) << i << " " << j;
    }
  }
}

// The narrow accumulator, in double: every addend and the sum are cut off.
float narrow_sum(const std::vector<double>& products, double c) {
  int top = std::ilogb(c);
  for (double product : products) {
    if (product != 0) top = std::max(top, std::ilogb(product));
  }
  const auto cut = [](double x, int binade) {
    return std::ldexp(std::trunc(std::ldexp(x, 13 - binade)), binade - 13);
  };
  double sum = cut(c, top);
  for (double product : products) sum += cut(product, top);
  return sum == 0 ? 0 : static_cast<float>(cut(sum, std::ilogb(sum)));
}

TEST(Matrix, NarrowAccumulator) {
  const std::string plain =
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, "
      "{%r14, %r15}, {%f0, %f1, %f2, %f3};";
  const std::string scaled =
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
      "{%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f0, %f1, %f2, %f3}, {%r20}, {1, 1}, "
      "{%r21}, {2, 1};";
  std::mt19937 rng(8);
  Mma mma(32, 1);
  // Powers of two, whose products have the binade that the hardware sees.
  for (auto& v : mma.a) v = static_cast<uint8_t>((rng() & 0x80) | (1 + rng() % 15) << 3);
  for (auto& v : mma.b) v = static_cast<uint8_t>((rng() & 0x80) | (1 + rng() % 15) << 3);
  for (auto& v : mma.c) v = static_cast<float>(static_cast<int>(rng() % 200001) - 100000) / 7;
  mma.pack(std::vector<uint8_t>(16, 128), std::vector<uint8_t>(8, 125));
  const auto d = mma.run(plain, MmaAccumulator::kNarrow), exact = mma.run(plain),
             s = mma.run(scaled, MmaAccumulator::kNarrow);
  uint32_t differences = 0;
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      std::vector<double> products(32), halves(32);
      for (uint32_t k = 0; k < 32; ++k) {
        products[k] = double{e4m3_to_f32(mma.a[i * 32 + k])} * e4m3_to_f32(mma.b[j * 32 + k]);
        halves[k] = products[k] / 2;  // 2^(128 - 127) * 2^(125 - 127)
      }
      EXPECT_EQ(d[i * 8 + j], narrow_sum(products, mma.c[i * 8 + j])) << i << " " << j;
      EXPECT_EQ(s[i * 8 + j], narrow_sum(halves, mma.c[i * 8 + j])) << i << " " << j;
      differences += d[i * 8 + j] != exact[i * 8 + j];
    }
  }
  EXPECT_GT(differences, 100u);
}

TEST(Matrix, NarrowAccumulatorStopsGrowing) {
  Mma mma(32, 1);
  for (auto& v : mma.a) v = 0x38;  // 1
  for (auto& v : mma.b) v = 0x38;
  for (auto& v : mma.c) v = 0x1p14f;
  mma.pack(std::vector<uint8_t>(16, 0), std::vector<uint8_t>(8, 0));
  const std::string instruction =
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, "
      "{%r14, %r15}, {%f0, %f1, %f2, %f3};";
  EXPECT_EQ(mma.run(instruction, MmaAccumulator::kNarrow)[0], 0x1p14f);
  EXPECT_EQ(mma.run(instruction)[0], 0x1p14f + 32);
}

TEST(Matrix, MmaBf16) {
  std::mt19937 rng(7);
  Mma mma(16, 2);
  std::vector<float> a(256), b(128);
  for (uint32_t i = 0; i < 256; ++i) {
    uint16_t h = bf16_from_double(static_cast<double>(rng() % 2001) / 1000 - 1);
    std::memcpy(&mma.a[2 * i], &h, 2);
    a[i] = bf16_to_f32(h);
  }
  for (uint32_t i = 0; i < 128; ++i) {
    uint16_t h = bf16_from_double(static_cast<double>(rng() % 2001) / 1000 - 1);
    std::memcpy(&mma.b[2 * i], &h, 2);
    b[i] = bf16_to_f32(h);
  }
  mma.pack(std::vector<uint8_t>(16, 0), std::vector<uint8_t>(8, 0));
  auto d = mma.run(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, "
      "{%r14, %r15}, "
      "{%f0, %f1, %f2, %f3};");
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      double want = 0;
      for (uint32_t k = 0; k < 16; ++k) want += double{a[i * 16 + k]} * b[j * 16 + k];
      EXPECT_EQ(d[i * 8 + j], static_cast<float>(want)) << i << " " << j;
    }
  }
}

TEST(Matrix, NanAndInfinityGoThrough) {
  Mma mma(32, 1);
  mma.a[0] = 0x7f;      // row 0: NaN
  mma.c[8] = INFINITY;  // row 1
  mma.pack(std::vector<uint8_t>(16, 0), std::vector<uint8_t>(8, 0));
  auto d = mma.run(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, "
      "{%r14, "
      "%r15}, {%f0, %f1, %f2, %f3};");
  EXPECT_EQ(f32_bits(d[0]), 0x7fffffffu);
  EXPECT_EQ(d[8], INFINITY);
  EXPECT_EQ(d[9], 0);
}

}  // namespace
}  // namespace mla::emu

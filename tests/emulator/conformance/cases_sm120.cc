// SPDX-License-Identifier: Apache-2.0
//
// Forms that no GPU of the recording kind has, against layouts written out here. Sources: the PTX
// manual 9.0 (9.7.14.5.10, fragments of m16n8k32; 9.7.14.3, block scaling), and for what its figures
// alone show, public measurements on sm_120 boards:
//   scale of row m of A: lane 4 * (m % 8) + 2 * thread-id + m / 8; of column n of B: lane
//   4 * n + thread-id; the byte of the register is byte-id.
//   ldmatrix .m16n16 .trans .b8: lane L addresses row L % 16 of matrix L / 16 (16 bytes); its
//   register 2 * matrix + half holds column L / 4 + 8 * half, rows 4 * (L % 4) ... + 3.
#include <cmath>

#include "tests/emulator/conformance/case.h"
#include "tests/emulator/conformance/values.h"

namespace mla::conformance {
namespace {

constexpr uint32_t kLanes = 32;

uint8_t byte_of(uint64_t word, uint32_t i) { return uint8_t(word >> (8 * i)); }

double e5m2(uint8_t bits) { return to_double("f16", uint64_t(bits) << 8); }

using Decode = double (*)(uint8_t);

// D = (A * scale_A) (B * scale_B) + C of m16n8k32 for every warp; i0-i3 hold A, i4 and i5 B, i6-i9 C.
// `scaled`: i10 and i11 hold the scales, selected by the byte and thread ids.
std::vector<Values> multiply(const std::vector<Values>& in, Decode a_value, Decode b_value, bool scaled,
                             uint32_t byte_a, uint32_t thread_a, uint32_t byte_b, uint32_t thread_b) {
  const uint32_t threads = uint32_t(in[0].size());
  std::vector<Values> out(4, Values(threads));
  const auto ue8m0 = [](uint8_t bits) { return std::ldexp(1.0, int(bits) - 127); };
  for (uint32_t warp = 0; warp < threads; warp += kLanes) {
    double a[16][32], b[32][8];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t group = lane >> 2, quad = lane & 3;
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t row = group + ((i & 4) ? 8 : 0), column = quad * 4 + (i & 3) + (i >= 8 ? 16 : 0);
        a[row][column] = a_value(byte_of(in[i / 4][warp + lane], i & 3));
      }
      for (uint32_t i = 0; i < 8; ++i) {
        b[quad * 4 + (i & 3) + (i >= 4 ? 16 : 0)][group] =
            b_value(byte_of(in[4 + i / 4][warp + lane], i & 3));
      }
    }
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = (lane >> 2) + (i >= 2 ? 8 : 0), column = (lane & 3) * 2 + (i & 1);
        double sum = 0;
        for (uint32_t k = 0; k < 32; ++k) sum += a[row][k] * b[k][column];
        if (scaled) {
          sum *= ue8m0(byte_of(in[10][warp + 4 * (row % 8) + 2 * thread_a + row / 8], byte_a));
          sum *= ue8m0(byte_of(in[11][warp + 4 * column + thread_b], byte_b));
        }
        const float result = float(sum + to_double("f32", in[6 + i][warp + lane]));
        uint32_t bits;
        static_assert(sizeof(bits) == sizeof(result));
        __builtin_memcpy(&bits, &result, sizeof(bits));
        out[i][warp + lane] = bits;
      }
    }
  }
  return out;
}

// Offset, in the 2 KiB of a warp, of the row that a lane addresses: scattered, 16-byte aligned.
uint32_t row_offset(uint32_t lane) { return (lane * 5 & 31) * 64 + ((lane >> 2) & 3) * 16; }

std::vector<Values> load_transposed(const Case& c) {
  const std::vector<uint8_t> source = make_source();
  std::vector<Values> out(c.out.size(), Values(c.threads()));
  for (uint32_t t = 0; t < c.threads(); ++t) {
    const uint32_t lane = t % kLanes;
    const uint8_t* shared = source.data() + t / kLanes * 2048;
    for (uint32_t r = 0; r < c.out.size(); ++r) {
      const uint32_t matrix = r / 2, column = lane / 4 + 8 * (r % 2);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = 4 * (lane % 4) + i;
        out[r][t] |= uint64_t(shared[row_offset(16 * matrix + row) + column]) << (8 * i);
      }
    }
  }
  return out;
}

}  // namespace

void add_sm120_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body) -> Case& {
    Case c;
    c.name = name + " (sm_120f)";
    c.target = "sm_120f";
    c.in = std::move(in);
    c.out = std::move(out);
    c.body = std::move(body);
    c.grid = 4;
    c.block = 32;
    cases->push_back(std::move(c));
    return cases->back();
  };

  const std::string filled =
      " .shared .align 128 .b8 s[2048];\n mov.u32 r0, s; mul.wide.u32 d1, gidx, 64; add.u64 d1, psrc, d1; "
      "shl.b32 r1, "
      "tidx, 6; add.u32 r1, r0, r1;\n ld.v4.b32 {r4, r5, r6, r7}, [d1]; st.shared.v4.b32 [r1], {r4, r5, r6, "
      "r7};\n ld.v4.b32 "
      "{r4, r5, r6, r7}, [d1+16]; st.shared.v4.b32 [r1+16], {r4, r5, r6, r7};\n ld.v4.b32 {r4, r5, r6, r7}, "
      "[d1+32]; "
      "st.shared.v4.b32 [r1+32], {r4, r5, r6, r7};\n ld.v4.b32 {r4, r5, r6, r7}, [d1+48]; st.shared.v4.b32 "
      "[r1+48], {r4, r5, "
      "r6, r7};\n bar.warp.sync 0xffffffff;\n mul.lo.u32 r2, lane, 5; and.b32 r2, r2, 31; shl.b32 r2, r2, 6; "
      "shr.u32 r3, "
      "lane, 2; and.b32 r3, r3, 3; shl.b32 r3, r3, 4; add.u32 r2, r2, r3; add.u32 r2, r0, r2;\n ";
  const auto transposed = [](const Case& c, const std::vector<Values>&) { return load_transposed(c); };
  add("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8", {}, {"b32", "b32"},
      filled + "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {o0, o1}, [r2];")
      .expect = transposed;
  add("ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8", {}, {"b32", "b32", "b32", "b32"},
      filled + "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {o0, o1, o2, o3}, [r2];")
      .expect = transposed;

  const auto operands = [](const std::string& a, const std::string& b, bool scaled) {
    std::vector<std::string> in(4, a);
    in.insert(in.end(), 2, b);
    in.insert(in.end(), 4, "f32i");
    if (scaled) in.insert(in.end(), 2, "ue8m0x4");
    return in;
  };
  const std::vector<std::string> four(4, "f32");
  const std::string registers = " {o0, o1, o2, o3}, {i0, i1, i2, i3}, {i4, i5}, {i6, i7, i8, i9}";
  const struct {
    const char* a;
    const char* b;
  } types[] = {{"e4m3", "e4m3"}, {"e5m2", "e5m2"}, {"e4m3", "e5m2"}, {"e5m2", "e4m3"}};
  for (const auto& [a, b] : types) {
    const Decode decode_a = a[1] == '4' ? e4m3_to_double : e5m2,
                 decode_b = b[1] == '4' ? e4m3_to_double : e5m2;
    const std::string pair = std::string(a) + "." + b;
    for (const std::string& form : {"mma.sync.aligned.m16n8k32.row.col.f32." + pair + ".f32",
                                    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32." + pair + ".f32"}) {
      add(form, operands(std::string(a) + "x4i", std::string(b) + "x4i", false), four, form + registers + ";")
          .expect = [=](const Case&, const std::vector<Values>& in) {
        return multiply(in, decode_a, decode_b, false, 0, 0, 0, 0);
      };
    }
    const std::string form =
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32." + pair +
        ".f32.ue8m0";
    for (uint32_t ids = 0; ids < 16; ++ids) {
      // Every byte of every selectable thread, for A and B independently enough.
      const uint32_t byte_a = ids & 3, thread_a = ids >> 2 & 1, byte_b = (ids * 3 + 1) & 3,
                     thread_b = ids >> 3 & 1;
      if (std::string(a) != b && ids) continue;
      const std::string selectors = ", {i10}, {" + std::to_string(byte_a) + ", " + std::to_string(thread_a) +
                                    "}, {i11}, {" + std::to_string(byte_b) + ", " + std::to_string(thread_b) +
                                    "}";
      add(form + selectors, operands(std::string(a) + "x4i", std::string(b) + "x4i", true), four,
          form + registers + selectors + ";")
          .expect = [=](const Case&, const std::vector<Values>& in) {
        return multiply(in, decode_a, decode_b, true, byte_a, thread_a, byte_b, thread_b);
      };
    }
  }
  // Ordinary numbers with unit scales: the form that gives full rate must give the plain form's result.
  {
    const std::string form =
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0";
    Case& c = add(form + ", unit scales", operands("e4m3x4n", "e4m3x4n", false), four,
                  " mov.b32 r0, 0x7f7f7f7f;\n " + form + registers + ", {r0}, {0, 0}, {r0}, {0, 0};");
    c.compare = Compare::kRelative;
    c.tolerance = 0x1p-21;
    c.expect = [](const Case&, const std::vector<Values>& in) {
      return multiply(in, e4m3_to_double, e4m3_to_double, false, 0, 0, 0, 0);
    };
  }
}

}  // namespace mla::conformance

// SPDX-License-Identifier: Apache-2.0
//
// mma.sync: operands convert to float exactly, products are exact, and the sum is taken in float, starting
// from C, in ascending order of k (the block-scaled form starts from 0 and adds C last, to the scaled
// sum); for bf16, whose products may leave the range of float, it is taken in double and rounded once.
// Hardware may add in another order and keep fewer bits on the way: LaunchConfig::mma_accumulator gives
// the 8-bit floats the accumulator of Hopper's wgmma.
#include <array>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/fp.h"
#include "tests/emulator/engine/mma_kernels.h"

namespace mla::emu {

namespace {

enum Element : uint32_t { kE4m3, kE5m2, kHalf, kBf16 };

struct Tables {
  std::array<float, 256> e4m3, e5m2;
  std::array<float, 65536> half, bf16;
  Tables() {
    for (uint32_t i = 0; i < 256; ++i) {
      e4m3[i] = e4m3_to_f32(static_cast<uint8_t>(i));
      e5m2[i] = e5m2_to_f32(static_cast<uint8_t>(i));
    }
    for (uint32_t i = 0; i < 65536; ++i) {
      half[i] = f16_to_f32(static_cast<uint16_t>(i));
      bf16[i] = bf16_to_f32(static_cast<uint16_t>(i));
    }
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

// Operands in x: d (4 or 2), a, b, c, and for the block-scaled form scale a, byte id a, thread id a,
// scale b, byte id b, thread id b.
// a[0]: element of A | element of B << 8 | f16 accumulator << 16 | block scale << 17; a[1]: k;
// a[2]: registers of A; a[3]: registers of B.
Next do_mma(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "mma.sync")) return Next::kFault;
  if (m.warp->live != ~0u)
    return m.fault(FaultKind::kDivergence, -1, "mma.sync needs all 32 threads of the warp");
  const Tables& t = tables();
  const uint32_t k_size = in.a[1], a_regs = in.a[2], b_regs = in.a[3];
  const bool half_acc = (in.a[0] >> 16) & 1, scaled = (in.a[0] >> 17) & 1;
  const uint32_t c_regs = half_acc ? 2 : 4;
  const Opd* x = in.x;
  const Opd *xd = x, *xa = xd + c_regs, *xb = xa + a_regs, *xc = xb + b_regs, *xs = xc + c_regs;
  alignas(64) float a[16 * 32], b[32 * 8], c[16 * 8];
  const uint32_t ea = in.a[0] & 255, eb = (in.a[0] >> 8) & 255;
  const uint32_t per_register = ea >= kHalf ? 2 : 4;
  auto unpack = [&](uint32_t element, uint32_t word, float* to, uint32_t step) {
    if (element == kE4m3) {
      for (uint32_t i = 0; i < 4; ++i) to[i * step] = t.e4m3[(word >> (8 * i)) & 255];
    } else if (element == kE5m2) {
      for (uint32_t i = 0; i < 4; ++i) to[i * step] = t.e5m2[(word >> (8 * i)) & 255];
    } else {
      const auto& table = element == kHalf ? t.half : t.bf16;
      to[0] = table[word & 0xffff];
      to[step] = table[word >> 16];
    }
  };
  for (uint32_t r = 0; r < a_regs; ++r) {
    const uint32_t* v = lanes<uint32_t>(m, xa[r]);
    if (ea == kE4m3) {  // the four words of a row lie side by side
      alignas(64) float values[128];
      e4m3_to_floats(reinterpret_cast<const uint8_t*>(v), values, 128);
      for (uint32_t row = 0; row < 8; ++row) {
        std::memcpy(a + (row + 8 * (r % 2)) * k_size + 16 * (r / 2), values + 16 * row, 64);
      }
      continue;
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t row = lane / 4 + 8 * (r % 2), k = per_register * (lane % 4) + 4 * per_register * (r / 2);
      unpack(ea, v[lane], a + row * k_size + k, 1);
    }
  }
  for (uint32_t r = 0; r < b_regs; ++r) {
    const uint32_t* v = lanes<uint32_t>(m, xb[r]);
    if (eb == kE4m3) {
      alignas(64) float values[128];
      e4m3_to_floats(reinterpret_cast<const uint8_t*>(v), values, 128);
      for (uint32_t k = 0; k < 16; ++k) {
        for (uint32_t column = 0; column < 8; ++column)
          b[(16 * r + k) * 8 + column] = values[16 * column + k];
      }
      continue;
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t column = lane / 4, k = per_register * (lane % 4) + 4 * per_register * r;
      unpack(eb, v[lane], b + k * 8 + column, 8);
    }
  }
  for (uint32_t r = 0; r < c_regs; ++r) {
    const uint32_t* v = lanes<uint32_t>(m, xc[r]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (half_acc) {
        float* to = c + (lane / 4 + 8 * r) * 8 + 2 * (lane % 4);
        to[0] = t.half[v[lane] & 0xffff];
        to[1] = t.half[v[lane] >> 16];
      } else {
        c[(lane / 4 + 8 * (r / 2)) * 8 + 2 * (lane % 4) + r % 2] = f32_from(v[lane]);
      }
    }
  }
  const bool narrow = m.config->mma_accumulator == MmaAccumulator::kNarrow && ea < kHalf && !half_acc;
  const int least_a = ea == kE4m3 ? -6 : -14, least_b = eb == kE4m3 ? -6 : -14;
  if (scaled) {
    alignas(64) float sum[16 * 8] = {};
    float sa[16], sb[8];
    const uint32_t* scale_a = lanes<uint32_t>(m, xs[0]);
    const uint32_t* scale_b = lanes<uint32_t>(m, xs[3]);
    uint32_t byte_a = lanes<uint32_t>(m, xs[1])[0], thread_a = lanes<uint32_t>(m, xs[2])[0];
    uint32_t byte_b = lanes<uint32_t>(m, xs[4])[0], thread_b = lanes<uint32_t>(m, xs[5])[0];
    if (byte_a > 3 || byte_b > 3 || thread_a > 1 || thread_b > 3) {
      return m.fault(FaultKind::kInstruction, -1, "scale selectors {%u, %u} and {%u, %u} are out of range",
                     byte_a, thread_a, byte_b, thread_b);
    }
    for (uint32_t row = 0; row < 16; ++row) {
      uint32_t lane = 4 * (row % 8) + 2 * thread_a + row / 8;
      sa[row] = ue8m0_to_f32(static_cast<uint8_t>(scale_a[lane] >> (8 * byte_a)));
    }
    for (uint32_t column = 0; column < 8; ++column) {
      sb[column] = ue8m0_to_f32(static_cast<uint8_t>(scale_b[4 * column + thread_b] >> (8 * byte_b)));
    }
    if (narrow) {  // C and the products meet in units of the scales
      for (uint32_t i = 0; i < 16 * 8; ++i) sum[i] = c[i] / sa[i / 8] / sb[i % 8];
      mma_16xn_narrow(a, b, sum, k_size, 8, least_a, least_b);
      for (uint32_t i = 0; i < 16 * 8; ++i) c[i] = sum[i] * sa[i / 8] * sb[i % 8];
    } else {
      mma_16x8(a, b, sum, k_size);
      for (uint32_t i = 0; i < 16 * 8; ++i) c[i] = sum[i] * sa[i / 8] * sb[i % 8] + c[i];
    }
  } else if (narrow) {
    mma_16xn_narrow(a, b, c, k_size, 8, least_a, least_b);
  } else if (ea == kBf16) {
    mma_16x8_wide(a, b, c, k_size);
  } else {
    mma_16x8(a, b, c, k_size);
  }
  for (uint32_t r = 0; r < c_regs; ++r) {
    uint32_t* v = lanes<uint32_t>(m, xd[r]);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if (half_acc) {
        const float* from = c + (lane / 4 + 8 * r) * 8 + 2 * (lane % 4);
        v[lane] = f16_from_double(from[0]) | uint32_t{f16_from_double(from[1])} << 16;
      } else {
        v[lane] = f32_bits(canonical(c[(lane / 4 + 8 * (r / 2)) * 8 + 2 * (lane % 4) + r % 2]));
      }
    }
  }
  m.report->macs += 16 * 8 * k_size;
  return Next::kNext;
}

void decode_mma(Decoder& d) {
  Instr& in = d.in;
  if (!d.mod("sync") || !d.mod("aligned")) d.fail("mma needs .sync.aligned");
  std::string shape = d.one_of({"m16n8k32", "m16n8k16", "m16n8k8"});
  if (shape.empty()) d.fail("shape of " + d.s.op_text + " is not supported");
  if (!d.mod("row") || !d.mod("col")) d.fail("mma needs .row.col");
  std::string kind = d.one_of({"kind::mxf8f6f4", "kind::f8f6f4"});
  bool scaled = d.mod("block_scale");
  if (scaled && !d.mod("scale_vec::1X")) d.fail(d.s.op_text + " needs .scale_vec::1X");
  if (scaled != (kind == "kind::mxf8f6f4")) d.fail(d.s.op_text + " is not supported");
  T td = d.type_in({T::kF32, T::kF16});
  T ta = d.type_in({T::kE4M3, T::kE5M2, T::kF16, T::kBF16});
  T tb = d.type_in({T::kE4M3, T::kE5M2, T::kF16, T::kBF16});
  T tc = d.type_in({T::kF32, T::kF16});
  if (scaled) d.type_in({T::kUE8M0});
  uint32_t k = shape == "m16n8k32" ? 32 : shape == "m16n8k16" ? 16 : 8;
  uint32_t bits = bits_of(ta);
  bool sixteen = bits == 16;
  if (td != tc || bits != bits_of(tb) || (sixteen && ta != tb) || (sixteen && k == 32) ||
      (!sixteen && k == 8))
    d.fail(d.s.op_text + " is not supported");
  if (td == T::kF16 && (ta == T::kBF16 || scaled)) d.fail(d.s.op_text + " is not supported");
  auto code = [](T t) {
    return t == T::kE4M3 ? kE4m3 : t == T::kE5M2 ? kE5m2 : t == T::kF16 ? kHalf : kBf16;
  };
  bool half_acc = td == T::kF16;
  uint32_t a_regs = 16 * k * bits / 1024, b_regs = 8 * k * bits / 1024, c_regs = half_acc ? 2 : 4;
  d.need(scaled ? 8 : 4);
  std::vector<Opd> operands;
  auto take = [&](size_t i, uint32_t n, bool target, T t) {
    auto elements = d.elements(d.operand(i));
    if (elements.size() != n)
      d.fail("operand " + std::to_string(i + 1) + " of " + d.s.op_text + " needs " + std::to_string(n) +
             " registers, found " + std::to_string(elements.size()));
    for (const Operand* o : elements) operands.push_back(target ? d.dst(*o, bits_of(t)) : d.src(*o, t));
  };
  T acc = half_acc ? T::kB32 : T::kF32;
  take(0, c_regs, true, acc);
  take(1, a_regs, false, T::kB32);
  take(2, b_regs, false, T::kB32);
  take(3, c_regs, false, acc);
  if (scaled) {
    take(4, 1, false, T::kB32);
    take(5, 2, false, T::kU16);
    take(6, 1, false, T::kB32);
    take(7, 2, false, T::kU16);
  }
  in.fn = do_mma;
  in.a[0] = code(ta) | code(tb) << 8 | (half_acc ? 1u << 16 : 0u) | (scaled ? 1u << 17 : 0u);
  in.a[1] = k;
  in.a[2] = a_regs;
  in.a[3] = b_regs;
  d.pool(std::move(operands));
}

}  // namespace

void add_mma_instructions(InstructionTable* table) { (*table)["mma"] = decode_mma; }

}  // namespace mla::emu

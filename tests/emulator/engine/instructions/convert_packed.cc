// SPDX-License-Identifier: Apache-2.0
//
// cvt to and from pairs of small floats, tf32, and cvt.pack.
#include <algorithm>
#include <bit>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/convert.h"
#include "tests/emulator/engine/instructions/float_rules.h"

namespace mla::emu {

namespace {

// Two floats (high first) to two packed values: a[0] kind.
enum Packed : uint32_t { kToF16x2, kToBf16x2, kToE4m3x2, kToE5m2x2, kToUe8m0x2 };

Next do_pack_floats(Machine& m, const Instr& in, uint32_t mask) {
  Source<float> high(m, in.o[1]), low(m, in.o[2]);
  const Round round = static_cast<Round>(in.a[1]);
  const uint32_t flags = in.a[2];
  uint32_t r[32];
  auto one = [&](float x) -> uint32_t {
    if ((flags & kRelu) && x < 0) x = 0;
    if ((flags & kRelu) && x == 0) x = 0;
    switch (in.a[0]) {
      case kToF16x2:
        return f16_from_double(x, round, flags & kSatFinite);
      case kToBf16x2:
        return bf16_from_double(x, round, flags & kSatFinite);
      case kToE4m3x2:
        return e4m3_from_double(x);
      case kToE5m2x2:
        return e5m2_from_double(x);
      default: {
        if (x != x) return 255;
        float v = std::fabs(x);
        if (v < 0x1p-127f) return round == Round::kUp && v > 0 ? 0 : 0;
        if (std::isinf(v)) return 254;
        int exponent = 0;
        float fraction = std::frexp(v, &exponent);
        int e = exponent - 1 + (round == Round::kUp && fraction > 0.5f) + 127;
        return static_cast<uint32_t>(std::clamp(e, 0, 254));
      }
    }
  };
  uint32_t shift = in.a[0] <= kToBf16x2 ? 16 : 8;
  for (int i = 0; i < 32; ++i) r[i] = one(high[i]) << shift | one(low[i]);
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

// f16x2 / bf16x2 to fp8 pairs and back: a[0] kind.
enum Repack : uint32_t { kF16x2ToE4m3x2, kF16x2ToE5m2x2, kE4m3x2ToF16x2, kE5m2x2ToF16x2, kUe8m0x2ToBf16x2 };

Next do_repack(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t* a = lanes<uint32_t>(m, in.o[1]);
  uint32_t r[32];
  const bool relu = in.a[2] & kRelu;
  auto to8 = [&](uint32_t h, bool e4m3) -> uint32_t {
    float x = f16_to_f32(static_cast<uint16_t>(h));
    if (relu && !(x > 0) && x == x) x = 0;
    return e4m3 ? e4m3_from_double(x) : e5m2_from_double(x);
  };
  auto to16 = [&](uint32_t b, bool e4m3) -> uint32_t {
    float x = e4m3 ? e4m3_to_f32(static_cast<uint8_t>(b)) : e5m2_to_f32(static_cast<uint8_t>(b));
    uint16_t h = f16_from_double(x);
    if (relu && (h & 0x8000) && (h & 0x7fff) <= 0x7c00) h = 0;
    return h;
  };
  for (int i = 0; i < 32; ++i) {
    switch (in.a[0]) {
      case kF16x2ToE4m3x2:
      case kF16x2ToE5m2x2: {
        bool e4m3 = in.a[0] == kF16x2ToE4m3x2;
        r[i] = to8(a[i] >> 16, e4m3) << 8 | to8(a[i] & 0xffff, e4m3);
        break;
      }
      case kE4m3x2ToF16x2:
      case kE5m2x2ToF16x2: {
        bool e4m3 = in.a[0] == kE4m3x2ToF16x2;
        r[i] = to16((a[i] >> 8) & 255, e4m3) << 16 | to16(a[i] & 255, e4m3);
        break;
      }
      default: {
        auto one = [](uint32_t b) -> uint32_t {
          return bf16_from_double(ue8m0_to_f32(static_cast<uint8_t>(b)));
        };
        r[i] = one((a[i] >> 8) & 255) << 16 | one(a[i] & 255);
      }
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

Next do_tf32(Machine& m, const Instr& in, uint32_t mask) {
  Source<float> a(m, in.o[1]);
  const Round round = static_cast<Round>(in.a[1]);
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    float x = a[i];
    if (x != x) {
      r[i] = f32_bits(x) & 0xffffe000;
    } else if (std::isinf(x)) {
      r[i] = in.a[2] & kSatFinite ? (f32_bits(x) & 0x80000000) | 0x7f7fe000 : f32_bits(x);
    } else {
      uint32_t magnitude = round_magnitude(std::fabs(x), {8, 10}, round, std::signbit(x)) << 13;
      if (magnitude >= 0x7f800000 && (in.a[2] & kSatFinite)) magnitude = 0x7f7fe000;
      r[i] = (f32_bits(x) & 0x80000000) | magnitude;
    }
    if ((in.a[2] & kRelu) && x < 0) r[i] = 0;
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

// Saturating pack of two s32 over the halves of c: cvt.pack.sat.{s16,u16,s8,u8}.s32.
Next do_cvt_pack(Machine& m, const Instr& in, uint32_t mask) {
  Source<int32_t> a(m, in.o[1]), b(m, in.o[2]);
  int32_t low = static_cast<int32_t>(in.a[0]), high = static_cast<int32_t>(in.a[1]);
  uint32_t bits = in.a[2];
  uint32_t keep = bits == 16 ? 0xffff : 0xff;
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    uint32_t x = static_cast<uint32_t>(std::clamp(a[i], low, high)) & keep,
             y = static_cast<uint32_t>(std::clamp(b[i], low, high)) & keep;
    r[i] = x << bits | y;
    if (bits == 8) {
      uint32_t c = in.o[3].present ? lanes<uint32_t>(m, in.o[3])[i] : 0;
      r[i] |= c << 16;
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

}  // namespace

bool is_packed(T t) {
  return t == T::kF16x2 || t == T::kBF16x2 || t == T::kE4M3x2 || t == T::kE5M2x2 || t == T::kUE8M0x2;
}

void decode_packed_convert(Decoder& d, const std::string& mode, T to, T from) {
  Instr& in = d.in;
  if (mode.empty() || mode.size() == 3) d.fail(d.s.op_text + " needs a rounding modifier");
  if (in.a[2] & (kSatFlag | kFtzFlag)) d.fail(d.s.op_text + " is not supported");
  if (from == T::kF32) {
    d.need(3);
    bool eight = to == T::kE4M3x2 || to == T::kE5M2x2;
    if (eight && (mode != "rn" || !(in.a[2] & kSatFinite))) d.fail("cvt to fp8 needs .rn.satfinite");
    if (to == T::kUE8M0x2 && (mode == "rn" || mode == "rm" || !(in.a[2] & kSatFinite)))
      d.fail("cvt to ue8m0x2 needs .rz or .rp and .satfinite");
    if (to == T::kF16x2 || to == T::kBF16x2) {
      if (mode != "rn" && mode != "rz")
        d.fail("cvt to " + std::string(type_name(to)) + " rounds with .rn or .rz");
    }
    in.fn = do_pack_floats;
    in.a[0] = to == T::kF16x2    ? kToF16x2
              : to == T::kBF16x2 ? kToBf16x2
              : to == T::kE4M3x2 ? kToE4m3x2
              : to == T::kE5M2x2 ? kToE5m2x2
                                 : kToUe8m0x2;
    in.o[0] = d.dst(d.operand(0), bits_of(to));
    in.o[1] = d.src(1, T::kF32);
    in.o[2] = d.src(2, T::kF32);
    return;
  }
  d.need(2);
  in.fn = do_repack;
  if (to == T::kE4M3x2 && from == T::kF16x2 && mode == "rn" && (in.a[2] & kSatFinite)) {
    in.a[0] = kF16x2ToE4m3x2;
  } else if (to == T::kE5M2x2 && from == T::kF16x2 && mode == "rn" && (in.a[2] & kSatFinite)) {
    in.a[0] = kF16x2ToE5m2x2;
  } else if (to == T::kF16x2 && from == T::kE4M3x2 && mode == "rn") {
    in.a[0] = kE4m3x2ToF16x2;
  } else if (to == T::kF16x2 && from == T::kE5M2x2 && mode == "rn") {
    in.a[0] = kE5m2x2ToF16x2;
  } else if (to == T::kBF16x2 && from == T::kUE8M0x2 && mode == "rn") {
    in.a[0] = kUe8m0x2ToBf16x2;
  } else {
    d.fail(d.s.op_text + " is not supported");
  }
  in.o[0] = d.dst(d.operand(0), bits_of(to));
  in.o[1] = d.src(d.operand(1), from);
}

void decode_tf32_convert(Decoder& d, const std::string& mode, T from) {
  Instr& in = d.in;
  if (from != T::kF32 || (mode != "rna" && mode != "rn" && mode != "rz"))
    d.fail(d.s.op_text + " is not supported");
  d.need(2);
  in.fn = do_tf32;
  in.o[0] = d.dst(0, T::kB32);
  in.o[1] = d.src(1, T::kF32);
}

void decode_convert_pack(Decoder& d) {
  Instr& in = d.in;
  if (!d.mod("sat")) d.fail("cvt.pack needs .sat");
  T to = d.type_in({T::kS16, T::kU16, T::kS8, T::kU8});
  T from = d.type_in({T::kS32});
  bool eight = bits_of(to) == 8;
  if (eight) d.type_in({T::kB32});
  d.need(eight ? 4 : 3);
  in.fn = do_cvt_pack;
  in.a[0] = static_cast<uint32_t>(to == T::kS16 ? -32768 : to == T::kS8 ? -128 : 0);
  in.a[1] = to == T::kS16 ? 32767 : to == T::kU16 ? 65535 : to == T::kS8 ? 127 : 255;
  in.a[2] = bits_of(to);
  in.o[0] = d.dst(0, T::kB32);
  in.o[1] = d.src(1, from);
  in.o[2] = d.src(2, from);
  if (eight) in.o[3] = d.src(3, T::kB32);
}

}  // namespace mla::emu

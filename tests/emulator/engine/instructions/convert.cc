// SPDX-License-Identifier: Apache-2.0
//
// cvt between scalar types.
#include "tests/emulator/engine/instructions/convert.h"

#include <algorithm>
#include <bit>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/float_rules.h"

namespace mla::emu {

namespace {

// a[1] rounding, a[2] flags.
template <class D, class A>
Next do_convert(Machine& m, const Instr& in, uint32_t mask) {
  const Round round = static_cast<Round>(in.a[1]);
  const uint32_t flags = in.a[2];
  constexpr bool from_int = std::is_integral_v<A>, to_int = std::is_integral_v<D>;
  // A source register may be wider than the type: the low bits count.
  const bool wide_source = in.a[3] & 1, wide_target = in.a[3] & 2;
  Store<D> r[32];
  for (int i = 0; i < 32; ++i) {
    uint64_t raw = wide_source ? lanes<uint64_t>(m, in.o[1])[i] : lanes<uint32_t>(m, in.o[1])[i];
    A a = from_lane<A>(static_cast<Store<A>>(raw));
    if constexpr (from_int && to_int) {
      D d = static_cast<D>(a);
      if (flags & kSatFlag) {
        __int128 v = a, low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
        d = static_cast<D>(v < low ? low : v > high ? high : v);
      }
      r[i] = to_lane<D>(d);
    } else if constexpr (to_int) {
      double v;
      if constexpr (std::is_same_v<A, Half>)
        v = f16_to_f32(a.bits);
      else if constexpr (std::is_same_v<A, Bfloat>)
        v = bf16_to_f32(a.bits);
      else if constexpr (std::is_same_v<A, float>)
        v = flags & kFtzFlag ? flush(a) : a;
      else
        v = a;
      r[i] = to_lane<D>(to_integer<D>(v, round, sizeof(A) == 8));
    } else {
      double v = 0;
      if constexpr (from_int) {
        if constexpr (std::is_same_v<D, float>) {
          float f = in_mode(round, [&] {
            volatile A x = a;
            volatile float y = static_cast<float>(x);
            return static_cast<float>(y);
          });
          if (flags & kSatFlag) f = f < 0 ? 0 : f > 1 ? 1 : f;
          r[i] = to_lane<float>(f);
          continue;
        } else {
          v = in_mode(round, [&] {
            volatile A x = a;
            volatile double y = static_cast<double>(x);
            return static_cast<double>(y);
          });
        }
      } else if constexpr (std::is_same_v<A, Half>) {
        v = f16_to_f32(a.bits);
      } else if constexpr (std::is_same_v<A, Bfloat>) {
        if constexpr (std::is_same_v<D, float>) {
          if (!(flags & (kIntegral | kSatFlag | kFtzFlag))) {  // bits move, NaN included
            r[i] = uint32_t{a.bits} << 16;
            continue;
          }
        }
        v = bf16_to_f32(a.bits);
      } else if constexpr (std::is_same_v<A, float>) {
        v = flags & kFtzFlag ? flush(a) : a;
      } else {
        v = a;
      }
      if (flags & kIntegral) v = v != v || std::isinf(v) ? v : std::copysign(round_to_integral(v, round), v);
      if constexpr (std::is_same_v<D, double> && std::is_same_v<A, float>) {
        if (flags & kFtzFlag) v = canonical(static_cast<float>(v));
      }
      if constexpr (std::is_same_v<D, double>) v = v != v ? quiet(v) : v;
      if (flags & kSatFlag) v = v != v ? 0 : v < 0 ? 0 : v > 1 ? 1 : v == 0 ? 0 : v;
      Round last = flags & kIntegral ? Round::kNearest : round;
      if constexpr (std::is_same_v<D, Half>) {
        uint16_t h = f16_from_double(v, last, flags & kSatFinite);
        if ((flags & kRelu) && (h & 0x8000) && (h & 0x7fff) <= 0x7c00) h = 0;
        r[i] = h;
      } else if constexpr (std::is_same_v<D, Bfloat>) {
        uint16_t h = bf16_from_double(v, last, flags & kSatFinite);
        if ((flags & kRelu) && (h & 0x8000) && (h & 0x7fff) <= 0x7f80) h = 0;
        r[i] = h;
      } else if constexpr (std::is_same_v<D, float>) {
        float f;
        if constexpr (std::is_same_v<A, double>) {
          f = in_mode(last, [&] {
            volatile double x = v;
            volatile float y = static_cast<float>(x);
            return static_cast<float>(y);
          });
        } else {
          f = static_cast<float>(v);
        }
        if (flags & kFtzFlag)
          f = std::is_same_v<A, double> && std::fabs(v) < 0x1p-126 ? std::copysign(0.0f, f) : flush(f);
        r[i] = to_lane<float>(std::is_same_v<A, double> ? f : canonical(f));
      } else {
        r[i] = to_lane<double>(v);
      }
    }
  }
  if (wide_target && sizeof(Store<D>) == 4) {
    // Into a wider register: sign- or zero-extended.
    uint64_t w[32];
    for (int i = 0; i < 32; ++i) {
      if constexpr (std::is_integral_v<D>) {
        w[i] = static_cast<uint64_t>(static_cast<int64_t>(from_lane<D>(r[i])));
      } else {
        w[i] = r[i];
      }
    }
    store_lanes(lanes<uint64_t>(m, in.o[0]), w, mask);
    return Next::kNext;
  }
  if constexpr (std::is_integral_v<D> && sizeof(D) < 4) {
    // 8- and 16-bit results may go to 16- or 32-bit registers.
    if (in.a[3] & 12) {
      uint32_t keep = in.a[3] & 4 ? 0xffff : ~0u;
      for (int i = 0; i < 32; ++i)
        r[i] = static_cast<uint32_t>(static_cast<int32_t>(from_lane<D>(r[i]))) & keep;
    }
  }
  store_lanes(lanes<D>(m, in.o[0]), r, mask);
  return Next::kNext;
}

template <class D>
Handler convert_from(T a) {
  switch (a) {
    case T::kU8:
      return do_convert<D, uint8_t>;
    case T::kS8:
      return do_convert<D, int8_t>;
    case T::kU16:
      return do_convert<D, uint16_t>;
    case T::kS16:
      return do_convert<D, int16_t>;
    case T::kU32:
      return do_convert<D, uint32_t>;
    case T::kS32:
      return do_convert<D, int32_t>;
    case T::kU64:
      return do_convert<D, uint64_t>;
    case T::kS64:
      return do_convert<D, int64_t>;
    case T::kF16:
      return do_convert<D, Half>;
    case T::kBF16:
      return do_convert<D, Bfloat>;
    case T::kF32:
      return do_convert<D, float>;
    case T::kF64:
      return do_convert<D, double>;
    default:
      return nullptr;
  }
}

Handler convert(T d, T a) {
  switch (d) {
    case T::kU8:
      return convert_from<uint8_t>(a);
    case T::kS8:
      return convert_from<int8_t>(a);
    case T::kU16:
      return convert_from<uint16_t>(a);
    case T::kS16:
      return convert_from<int16_t>(a);
    case T::kU32:
      return convert_from<uint32_t>(a);
    case T::kS32:
      return convert_from<int32_t>(a);
    case T::kU64:
      return convert_from<uint64_t>(a);
    case T::kS64:
      return convert_from<int64_t>(a);
    case T::kF16:
      return convert_from<Half>(a);
    case T::kBF16:
      return convert_from<Bfloat>(a);
    case T::kF32:
      return convert_from<float>(a);
    case T::kF64:
      return convert_from<double>(a);
    default:
      return nullptr;
  }
}

void decode_convert(Decoder& d) {
  Instr& in = d.in;
  if (d.mod("pack")) return decode_convert_pack(d);
  std::string mode = d.one_of({"rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"});
  bool ftz = d.mod("ftz"), sat = d.mod("sat"), relu = d.mod("relu"), satfinite = d.mod("satfinite");
  T to = d.type();
  T from = d.type();
  bool integral = mode.size() == 3 && mode != "rna";
  Round round = mode == "rna" ? Round::kNearestAway : round_of(mode.substr(0, 2));
  in.a[1] = static_cast<uint32_t>(round);
  in.a[2] =
      (ftz ? kFtzFlag : 0u) | (sat ? kSatFlag : 0u) | (relu ? kRelu : 0u) | (satfinite ? kSatFinite : 0u);
  if (to == T::kTF32) return decode_tf32_convert(d, mode, from);
  if (is_packed(to)) return decode_packed_convert(d, mode, to, from);
  d.need(2);
  in.fn = convert(to, from);
  if (!in.fn) d.fail(d.s.op_text + " is not supported");
  bool to_float = is_float(to), from_float = is_float(from);
  if (mode == "rna") d.fail(".rna is supported for .tf32 only");
  if (from_float && !to_float && !integral)
    d.fail("cvt from float to integer needs an integer rounding modifier");
  if (to_float && !from_float && (mode.empty() || integral))
    d.fail("cvt from integer to float needs a rounding modifier");
  if (to_float && from_float && bits_of(to) < bits_of(from) && mode.empty())
    d.fail("cvt to a smaller float needs a rounding modifier");
  if ((relu || satfinite) && to != T::kF16 && to != T::kBF16) d.fail(d.s.op_text + " is not supported");
  if (integral && to_float) in.a[2] |= kIntegral;
  if (to_float && from_float && !integral && mode.empty()) in.a[1] = static_cast<uint32_t>(Round::kNearest);
  uint32_t to_bits = bits_of(to), from_bits = bits_of(from);
  in.o[0] = d.dst(d.operand(0), to_bits, true);
  in.o[1] = d.src(d.operand(1), from, true);
  const Operand &target = d.operand(0), &source = d.operand(1);
  uint32_t target_bits = target.kind == Operand::kReg ? d.register_bits(target.reg) : to_bits;
  uint32_t source_bits = source.kind == Operand::kReg ? d.register_bits(source.reg) : from_bits;
  if (source_bits > 32) in.a[3] |= 1;
  if (target_bits > 32) in.a[3] |= 2;
  if (to_bits < 32 && target_bits > to_bits) in.a[3] |= target_bits == 16 ? 4u : 8u;
}

}  // namespace

void add_conversion_instructions(InstructionTable* table) { (*table)["cvt"] = decode_convert; }

}  // namespace mla::emu

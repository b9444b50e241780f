// SPDX-License-Identifier: Apache-2.0
//
// Comparisons and selections.
#include <map>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/fp.h"
#include "tests/emulator/engine/instructions/pick.h"

namespace mla::emu {

namespace {

enum Cmp : uint32_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

template <class X>
struct Compared {
  using type = X;
  static X get(X x) { return x; }
};
template <>
struct Compared<Half> {
  using type = float;
  static float get(Half x) { return f16_to_f32(x.bits); }
};
template <>
struct Compared<Bfloat> {
  using type = float;
  static float get(Bfloat x) { return bf16_to_f32(x.bits); }
};

template <class X, bool kFlush>
uint32_t compare(Machine& m, const Opd& oa, const Opd& ob, uint32_t cmp) {
  using C = typename Compared<X>::type;
  Source<X> sa(m, oa), sb(m, ob);
  C a[32], b[32];
  for (int i = 0; i < 32; ++i) {
    a[i] = Compared<X>::get(sa[i]);
    b[i] = Compared<X>::get(sb[i]);
    if constexpr (kFlush && std::is_same_v<C, float>) {
      a[i] = flush(a[i]);
      b[i] = flush(b[i]);
    }
  }
  uint32_t r = 0;
#define MLA_COMPARE(value)                                                  \
  for (uint32_t i = 0; i < 32; ++i) r |= static_cast<uint32_t>(value) << i; \
  break
  switch (cmp) {
    case kEq:
      MLA_COMPARE(a[i] == b[i]);
    case kNe:
      MLA_COMPARE(a[i] < b[i] || a[i] > b[i]);
    case kLt:
      MLA_COMPARE(a[i] < b[i]);
    case kLe:
      MLA_COMPARE(a[i] <= b[i]);
    case kGt:
      MLA_COMPARE(a[i] > b[i]);
    case kGe:
      MLA_COMPARE(a[i] >= b[i]);
    case kEqu:
      MLA_COMPARE(!(a[i] < b[i] || a[i] > b[i]));
    case kNeu:
      MLA_COMPARE(a[i] != b[i]);
    case kLtu:
      MLA_COMPARE(!(a[i] >= b[i]));
    case kLeu:
      MLA_COMPARE(!(a[i] > b[i]));
    case kGtu:
      MLA_COMPARE(!(a[i] <= b[i]));
    case kGeu:
      MLA_COMPARE(!(a[i] < b[i]));
    case kNum:
      MLA_COMPARE(a[i] == a[i] && b[i] == b[i]);
    case kNan:
      MLA_COMPARE(a[i] != a[i] || b[i] != b[i]);
    default:
      break;
  }
#undef MLA_COMPARE
  return r;
}

// o[0] p, o[1] a, o[2] b, o[3] c (when a[1]), o[4] q. a[0]: comparison, a[1]: 0 none, 1 and, 2 or, 3 xor.
template <class X, bool kFlush>
Next do_setp(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t r = compare<X, kFlush>(m, in.o[1], in.o[2], in.a[0]);
  uint32_t p = r, q = ~r;
  if (in.a[1]) {
    uint32_t c = predicate(m, in.o[3]);
    p = in.a[1] == 1 ? r & c : in.a[1] == 2 ? r | c : r ^ c;
    q = in.a[1] == 1 ? ~r & c : in.a[1] == 2 ? ~r | c : ~r ^ c;
  }
  set_predicate(m, in.o[0], p, mask);
  if (in.o[4].present) set_predicate(m, in.o[4], q, mask);
  return Next::kNext;
}

// The same with an integer (all ones) or float (1.0) result; a[2]: the value of true.
template <class X, bool kFlush>
Next do_set(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t r = compare<X, kFlush>(m, in.o[1], in.o[2], in.a[0]);
  if (in.a[1]) {
    uint32_t c = predicate(m, in.o[3]);
    r = in.a[1] == 1 ? r & c : in.a[1] == 2 ? r | c : r ^ c;
  }
  uint32_t v[32];
  for (uint32_t i = 0; i < 32; ++i) v[i] = (r >> i) & 1 ? in.a[2] : 0;
  store_lanes(lanes<uint32_t>(m, in.o[0]), v, mask);
  return Next::kNext;
}

template <class X>
X select(X a, X b, bool c) {
  return c ? a : b;
}

template <class X>
X slct_int(X a, X b, int32_t c) {
  return c >= 0 ? a : b;
}
template <class X>
X slct_float(X a, X b, float c) {
  return c >= 0 ? a : b;  // NaN picks b
}
template <class X>
X slct_ftz(X a, X b, float c) {
  return flush(c) >= 0 ? a : b;
}

uint32_t comparison(Decoder& d, bool floating, bool is_unsigned_type) {
  std::string c = d.one_of({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu",
                            "leu", "gtu", "geu", "num", "nan"});
  static const std::map<std::string, uint32_t> codes = {
      {"eq", kEq},   {"ne", kNe},   {"lt", kLt},   {"le", kLe},   {"gt", kGt},   {"ge", kGe},
      {"lo", kLt},   {"ls", kLe},   {"hi", kGt},   {"hs", kGe},   {"equ", kEqu}, {"neu", kNeu},
      {"ltu", kLtu}, {"leu", kLeu}, {"gtu", kGtu}, {"geu", kGeu}, {"num", kNum}, {"nan", kNan}};
  if (c.empty()) d.fail("no comparison in " + d.s.op_text);
  bool unsigned_only = c == "lo" || c == "ls" || c == "hi" || c == "hs";
  if (unsigned_only && !is_unsigned_type) d.fail("." + c + " needs an unsigned type");
  uint32_t code = codes.at(c);
  if (code >= kEqu && !floating) d.fail("." + c + " needs a floating-point type");
  return code;
}

void decode_comparison(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  bool ftz = d.mod("ftz");
  std::string combine = d.one_of({"and", "or", "xor"});
  T result = name == "set" ? d.type_in({T::kU32, T::kS32, T::kF32}) : T::kPred;
  T t = d.type();
  bool floating = is_float(t);
  bool is_unsigned_type = t == T::kU16 || t == T::kU32 || t == T::kU64;
  in.a[0] = comparison(d, floating, is_unsigned_type);
  T u = t == T::kB16 ? T::kU16 : t == T::kB32 ? T::kU32 : t == T::kB64 ? T::kU64 : t;
  if (u != t && in.a[0] > kNe) d.fail("bit types compare with .eq and .ne only");
  bool pred = name == "setp";
#define MLA_COMPARISON(type, ftz_value) \
  (pred ? Handler(do_setp<type, ftz_value>) : Handler(do_set<type, ftz_value>))
  switch (u) {
    case T::kU16:
      in.fn = MLA_COMPARISON(uint16_t, false);
      break;
    case T::kS16:
      in.fn = MLA_COMPARISON(int16_t, false);
      break;
    case T::kU32:
      in.fn = MLA_COMPARISON(uint32_t, false);
      break;
    case T::kS32:
      in.fn = MLA_COMPARISON(int32_t, false);
      break;
    case T::kU64:
      in.fn = MLA_COMPARISON(uint64_t, false);
      break;
    case T::kS64:
      in.fn = MLA_COMPARISON(int64_t, false);
      break;
    case T::kF32:
      in.fn = ftz ? MLA_COMPARISON(float, true) : MLA_COMPARISON(float, false);
      break;
    case T::kF64:
      in.fn = MLA_COMPARISON(double, false);
      break;
    case T::kF16:
      in.fn = MLA_COMPARISON(Half, false);
      break;
    case T::kBF16:
      in.fn = MLA_COMPARISON(Bfloat, false);
      break;
    default:
      d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
  }
#undef MLA_COMPARISON
  if (ftz && t != T::kF32) d.fail(".ftz needs .f32");
  d.need(combine.empty() ? 3 : 4);
  if (pred) {
    const Operand& to = d.operand(0);
    if (to.kind == Operand::kPair) {
      in.o[0] = d.dst(to.parts[0], 1);
      in.o[4] = d.dst(to.parts[1], 1);
    } else {
      in.o[0] = d.dst(to, 1);
    }
  } else {
    in.o[0] = d.dst(0, result);
    in.a[2] = result == T::kF32 ? 0x3f800000 : ~0u;
  }
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  if (!combine.empty()) {
    in.a[1] = combine == "and" ? 1 : combine == "or" ? 2 : 3;
    in.o[3] = d.src_pred(d.operand(3));
  }
}

void decode_selp(Decoder& d) {
  Instr& in = d.in;
  T t = d.type();
  d.need(4);
  in.fn = MLA_PICK_BITS(t, (alu<select<X>, X, X, X, Pred>));
  if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for selp");
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  in.o[3] = d.src_pred(d.operand(3));
}

void decode_slct(Decoder& d) {
  Instr& in = d.in;
  bool ftz = d.mod("ftz");
  T t = d.type();
  T by = d.type_in({T::kS32, T::kF32});
  d.need(4);
  if (ftz && by != T::kF32) d.fail(".ftz needs .f32");
  in.fn = by == T::kS32 ? MLA_PICK_BITS(t, (alu<slct_int<X>, X, X, X, int32_t>))
          : ftz         ? MLA_PICK_BITS(t, (alu<slct_ftz<X>, X, X, X, float>))
                        : MLA_PICK_BITS(t, (alu<slct_float<X>, X, X, X, float>));
  if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for slct");
  in.o[0] = d.dst(0, t);
  in.o[1] = d.src(1, t);
  in.o[2] = d.src(2, t);
  in.o[3] = d.src(3, by);
}

}  // namespace

void add_comparison_instructions(InstructionTable* table) {
  (*table)["setp"] = decode_comparison;
  (*table)["set"] = decode_comparison;
  (*table)["selp"] = decode_selp;
  (*table)["slct"] = decode_slct;
}

}  // namespace mla::emu

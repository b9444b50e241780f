// SPDX-License-Identifier: Apache-2.0
//
// Turns one statement into one instruction: consumes its modifiers and operands. What is left over is
// an error, so no modifier is ever ignored by accident.
#pragma once

#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/emulator/engine/machine.h"

namespace mla::emu {

enum class T : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF16x2,
  kBF16x2,
  kE4M3x2,
  kE5M2x2,
  kE4M3,
  kE5M2,
  kUE8M0x2,
  kUE8M0,
  kTF32,
  kU16x2,
  kS16x2,
};

uint32_t bits_of(T t);
const char* type_name(T t);
bool is_signed(T t);
bool is_float(T t);
bool is_integer(T t);
T find_type_named(std::string_view name);  // kNone if there is none

uint32_t bits_of_class(RegClass cls);
// Bytes in the register file, for 32 lanes.
uint32_t slot_bytes(uint32_t bits);

// Opd::constant before placement: the offset is final already.
inline constexpr uint8_t kFixedPlace = 2;

struct Unsupported {
  std::string message;
};

class Decoder {
 public:
  Decoder(Program& program, const Function& function, const Statement& statement, uint32_t frame_base)
      : s(statement), program_(program), function_(function), frame_base_(frame_base), used_(s.op.size()) {
    used_[0] = true;
  }

  const Statement& s;
  Instr in;
  std::vector<uint32_t> defs, uses;
  std::string label;                // where the instruction branches to, if it does
  std::vector<std::string> labels;  // brx
  Handler after = nullptr;          // executed behind the instruction, with its Instr::p: results of a call

  [[noreturn]] void fail(std::string message) const { throw Unsupported{std::move(message)}; }
  const std::string& name() const { return s.op[0]; }

  // ---- modifiers
  bool mod(std::string_view name);
  // The first of the given modifiers that is there, consumed; "" when none is.
  std::string one_of(std::initializer_list<std::string_view> names);
  // The next type, consumed; fails when there is none.
  T type();
  T type_or(T fallback);
  // The next type, which must be one of these.
  T type_in(std::initializer_list<T> allowed);
  // Fails on modifiers that nobody consumed.
  void finish() const;

  // ---- operands
  size_t count() const { return s.operands.size(); }
  void need(size_t n) const { need(n, n); }
  void need(size_t low, size_t high) const;
  const Operand& operand(size_t i) const { return s.operands[i]; }
  // A destination register of exactly these bits (a sink gets a scratch register); bits 1: predicate.
  Opd dst(const Operand& operand, uint32_t bits, bool wider_ok = false);
  Opd dst(size_t i, T t) { return dst(operand(i), bits_of(t)); }
  // A source of this type: register, immediate, special register or address of a variable.
  Opd src(const Operand& operand, T t, bool wider_ok = false);
  Opd src(size_t i, T t) { return src(operand(i), t); }
  Opd src_pred(const Operand& operand);
  Opd constant(uint64_t value, uint32_t bits);
  // Immediate integer, or failure.
  int64_t immediate(size_t i) const;
  // Vector operands: a list of operands, one or more.
  std::vector<const Operand*> elements(const Operand& operand) const;
  void pool(std::vector<Opd> operands);
  // Address [reg + imm], [symbol + imm] or [imm] into a register or constant operand plus in.imm. The
  // space of a symbol must fit `space`; kGeneric takes the generic address.
  Opd address(const Operand& operand, Space space);
  // Bytes of registers: number of 32-bit lanes per operand.
  uint32_t register_bits(int32_t reg) const;

  // The predicate that holds the carry flag of add.cc, for Opd::offset with Opd::constant 2.
  uint32_t carry_place();

  Program& program() { return program_; }
  const Function& function() const { return function_; }
  uint32_t frame_base() const { return frame_base_; }
  uint64_t symbol_address(const Symbol& symbol, bool generic) const;

 private:
  void check_special(const std::string& text) const;

  Program& program_;
  const Function& function_;
  uint32_t frame_base_;
  std::vector<bool> used_;
};

// ---------------------------------------------------------------- lanes

struct Pred {};
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

template <class X>
using Store = std::conditional_t<(sizeof(X) > 4), uint64_t, uint32_t>;

template <class X>
inline X from_lane(Store<X> v) {
  if constexpr (std::is_integral_v<X>) {
    return static_cast<X>(v);
  } else if constexpr (std::is_same_v<X, Half> || std::is_same_v<X, Bfloat>) {
    return X{static_cast<uint16_t>(v)};
  } else {
    return std::bit_cast<X>(v);
  }
}

template <class X>
inline Store<X> to_lane(X x) {
  if constexpr (std::is_integral_v<X>) {
    return static_cast<std::make_unsigned_t<X>>(x);
  } else if constexpr (std::is_same_v<X, Half> || std::is_same_v<X, Bfloat>) {
    return x.bits;
  } else {
    return std::bit_cast<Store<X>>(x);
  }
}

inline uint8_t* operand_at(Machine& m, const Opd& o) { return m.bases[o.constant] + o.offset; }

template <class X>
inline Store<X>* lanes(Machine& m, const Opd& o) {
  return reinterpret_cast<Store<X>*>(operand_at(m, o));
}

inline uint32_t predicate(Machine& m, const Opd& o) {
  uint32_t v = *reinterpret_cast<uint32_t*>(operand_at(m, o));
  return o.negated ? ~v : v;
}

inline void set_predicate(Machine& m, const Opd& o, uint32_t value, uint32_t mask) {
  uint32_t& p = *reinterpret_cast<uint32_t*>(operand_at(m, o));
  p = (p & ~mask) | (value & mask);
}

template <class S>
inline void store_lanes(S* to, const S* from, uint32_t mask) {
  if (mask == ~0u) {
    std::memcpy(to, from, sizeof(S) * 32);
  } else {
    for (int i = 0; i < 32; ++i) to[i] = (mask >> i) & 1 ? from[i] : to[i];
  }
}

template <class X>
struct Source {
  const Store<X>* p;
  Source(Machine& m, const Opd& o) : p(lanes<X>(m, o)) {}
  X operator[](int i) const { return from_lane<X>(p[i]); }
};
template <>
struct Source<Pred> {
  uint32_t bits;
  Source(Machine& m, const Opd& o) : bits(predicate(m, o)) {}
  bool operator[](int i) const { return (bits >> i) & 1; }
};

template <auto F, class D, class... A, size_t... K>
inline Next alu_impl(Machine& m, const Instr& in, uint32_t mask, std::index_sequence<K...>) {
  std::tuple<Source<A>...> sources{Source<A>(m, in.o[1 + K])...};
  if constexpr (std::is_same_v<D, Pred>) {
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) r |= static_cast<uint32_t>(bool(F(std::get<K>(sources)[i]...))) << i;
    set_predicate(m, in.o[0], r, mask);
  } else {
    Store<D> r[32];
    for (int i = 0; i < 32; ++i) r[i] = to_lane<D>(F(std::get<K>(sources)[i]...));
    store_lanes(lanes<D>(m, in.o[0]), r, mask);
  }
  return Next::kNext;
}

// Lane-wise instruction: o[0] = F(o[1], o[2], ...).
template <auto F, class D, class... A>
Next alu(Machine& m, const Instr& in, uint32_t mask) {
  return alu_impl<F, D, A...>(m, in, mask, std::index_sequence_for<A...>{});
}

#define MLA_FOR_LANES(i, mask)            \
  for (uint32_t left_##i = (mask), i = 0; \
       left_##i && (i = static_cast<uint32_t>(__builtin_ctz(left_##i)), true); left_##i &= left_##i - 1)

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Modifiers and operands of a statement.
#include "tests/emulator/engine/decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mla::emu {

bool Decoder::mod(std::string_view name) {
  for (size_t i = 1; i < s.op.size(); ++i) {
    if (!used_[i] && s.op[i] == name) {
      used_[i] = true;
      return true;
    }
  }
  return false;
}

std::string Decoder::one_of(std::initializer_list<std::string_view> names) {
  for (size_t i = 1; i < s.op.size(); ++i) {
    if (used_[i]) continue;
    for (std::string_view name : names) {
      if (s.op[i] == name) {
        used_[i] = true;
        return s.op[i];
      }
    }
  }
  return "";
}

T Decoder::type_or(T fallback) {
  for (size_t i = 1; i < s.op.size(); ++i) {
    if (used_[i]) continue;
    const T t = find_type_named(s.op[i]);
    if (t == T::kNone) continue;
    used_[i] = true;
    return t;
  }
  return fallback;
}

T Decoder::type() {
  T t = type_or(T::kNone);
  if (t == T::kNone) {
    finish();  // a type that is not known, most likely
    fail(s.op_text + " is not supported without a type");
  }
  return t;
}

T Decoder::type_in(std::initializer_list<T> allowed) {
  T t = type();
  if (std::find(allowed.begin(), allowed.end(), t) == allowed.end()) {
    fail(std::string("type .") + type_name(t) + " is not supported for " + name());
  }
  return t;
}

void Decoder::finish() const {
  for (size_t i = 1; i < s.op.size(); ++i) {
    if (!used_[i]) fail("modifier ." + s.op[i] + " of " + s.op_text + " is not supported");
  }
}

void Decoder::need(size_t low, size_t high) const {
  if (count() < low || count() > high) {
    fail(s.op_text + " takes " + std::to_string(low) + (high != low ? " to " + std::to_string(high) : "") +
         " operands, found " + std::to_string(count()));
  }
}

uint32_t Decoder::register_bits(int32_t reg) const {
  return bits_of_class(function_.regs[static_cast<size_t>(reg)].cls);
}

Opd Decoder::dst(const Operand& o, uint32_t bits, bool wider_ok) {
  Opd result;
  result.present = 1;
  if (o.kind == Operand::kSink) {
    // A register of its own that nobody reads.
    auto& regs = const_cast<Function&>(function_).regs;
    RegClass cls = bits == 1    ? RegClass::kPred
                   : bits <= 32 ? RegClass::k32
                   : bits == 64 ? RegClass::k64
                                : RegClass::k128;
    regs.push_back({"_", cls});
    result.offset = static_cast<uint32_t>(regs.size() - 1);
    defs.push_back(result.offset);
    return result;
  }
  if (o.kind != Operand::kReg || o.negated) fail("the destination of " + s.op_text + " must be a register");
  uint32_t have = register_bits(o.reg);
  bool fits = have == bits || (wider_ok && have > bits && bits > 1);
  if (!fits) {
    fail("register " + function_.regs[static_cast<size_t>(o.reg)].name + " has " + std::to_string(have) +
         " bits, " + s.op_text + " writes " + std::to_string(bits));
  }
  result.offset = static_cast<uint32_t>(o.reg);
  defs.push_back(result.offset);
  return result;
}

Opd Decoder::constant(uint64_t value, uint32_t bits) {
  if (bits < 64) value &= (uint64_t{1} << bits) - 1;
  Opd result;
  result.present = 1;
  result.constant = 1;
  auto& pool = program_.constants;
  if (bits == 1) {
    // A mask of all lanes, in four bytes.
    result.offset = static_cast<uint32_t>(pool.size());
    uint32_t v = value ? ~0u : 0u;
    pool.resize(pool.size() + 128);
    std::memcpy(pool.data() + result.offset, &v, 4);
    return result;
  }
  static_assert(std::endian::native == std::endian::little);
  uint32_t unit = bits <= 32 ? 4 : 8;
  uint32_t size = slot_bytes(bits);
  // Immediates repeat.
  const auto [known, added] =
      program_.constant_places.try_emplace({value, size}, static_cast<uint32_t>(pool.size()));
  if (!added && bits <= 64) {
    result.offset = known->second;
    return result;
  }
  result.offset = static_cast<uint32_t>(pool.size());
  pool.resize(pool.size() + size);
  for (uint32_t i = 0; i < 32; ++i) std::memcpy(pool.data() + result.offset + i * unit, &value, unit);
  return result;
}

uint64_t Decoder::symbol_address(const Symbol& symbol, bool generic) const {
  switch (symbol.space) {
    case Space::kShared:
      return (symbol.dynamic ? program_.dynamic_base : symbol.offset) + (generic ? kSharedWindow : 0);
    case Space::kLocal: {
      uint32_t base = 0;
      for (const Function* function : program_.functions) {
        if (function == &function_) break;
        base += (function->local_bytes + 15) / 16 * 16;
      }
      return base + symbol.offset + (generic ? kLocalWindow : 0);
    }
    case Space::kParam:
      return symbol.offset + (generic ? kParamWindow : 0);
    case Space::kConst:
      return symbol.offset + (generic ? kConstWindow : 0);
    default:
      fail("the address of " + symbol.name + " cannot be taken here");
  }
}

Opd Decoder::src(const Operand& o, T t, bool wider_ok) {
  uint32_t bits = bits_of(t);
  Opd result;
  result.present = 1;
  switch (o.kind) {
    case Operand::kReg: {
      if (t == T::kPred) return src_pred(o);
      if (o.negated) fail("'!' is allowed for predicates only");
      uint32_t have = register_bits(o.reg);
      if (have != bits && !(wider_ok && have > bits)) {
        fail("register " + function_.regs[static_cast<size_t>(o.reg)].name + " has " + std::to_string(have) +
             " bits, " + s.op_text + " reads " + std::to_string(bits));
      }
      result.offset = static_cast<uint32_t>(o.reg);
      uses.push_back(result.offset);
      return result;
    }
    case Operand::kInt:
      if (t == T::kF32 || t == T::kF64) {
        return constant(t == T::kF32 ? std::bit_cast<uint32_t>(static_cast<float>(o.value))
                                     : std::bit_cast<uint64_t>(static_cast<double>(o.value)),
                        bits);
      }
      if (bits > 64) fail("128-bit immediates are not supported");
      return constant(static_cast<uint64_t>(o.value), bits);
    case Operand::kFloat: {
      double value =
          o.single ? std::bit_cast<float>(static_cast<uint32_t>(o.value)) : std::bit_cast<double>(o.value);
      if (bits == 32 && o.single) return constant(static_cast<uint64_t>(o.value), 32);
      if (bits == 32) return constant(std::bit_cast<uint32_t>(static_cast<float>(value)), 32);
      if (bits == 64)
        return constant(o.single ? std::bit_cast<uint64_t>(value) : static_cast<uint64_t>(o.value), 64);
      fail("a float immediate does not fit ." + std::string(type_name(t)));
    }
    case Operand::kSpecial: {
      check_special(o.text);
      auto found = program_.specials.find(o.text);
      bool wide = o.text == "%clock64" || o.text == "%globaltimer" || o.text == "%gridid" ||
                  o.text == "%current_graph_exec";
      uint32_t have = wide ? 64 : o.text == "%is_explicit_cluster" ? 1 : 32;
      if (have != bits)
        fail("special register " + o.text + " has " + std::to_string(have) + " bits, " + s.op_text +
             " reads " + std::to_string(bits));
      if (found == program_.specials.end()) {
        program_.specials[o.text] = program_.register_bytes;
        found = program_.specials.find(o.text);
        program_.register_bytes += 256;
      }
      result.offset = found->second;
      result.constant = kFixedPlace;
      return result;
    }
    case Operand::kSymbol: {
      const Symbol& symbol = *o.symbol;
      if (symbol.space == Space::kGlobal) {
        if (bits != 64) fail("the address of " + symbol.name + " needs 64 bits");
        result.constant = 1;
        result.offset = static_cast<uint32_t>(program_.constants.size());
        program_.constants.resize(program_.constants.size() + 256);
        program_.patches.push_back({result.offset, static_cast<uint32_t>(symbol.offset), o.value, true});
        return result;
      }
      return constant(symbol_address(symbol, false) + static_cast<uint64_t>(o.value), bits);
    }
    default:
      fail("operand form is not supported in " + s.op_text);
  }
}

// A special register of several components needs one of them; the others have none.
void Decoder::check_special(const std::string& text) const {
  static const std::set<std::string, std::less<>> vectors = {
      "%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"};
  const size_t dot = text.find('.');
  const std::string base = text.substr(0, dot), component = dot == std::string::npos ? "" : text.substr(dot);
  if (!vectors.count(base)) {
    if (!component.empty())
      fail("special register " + base + " is no vector: " + component + " has no meaning");
  } else if (component != ".x" && component != ".y" && component != ".z" && component != ".w") {
    fail("special register " + base + " is a vector: " + s.op_text + " needs " + base + ".x, .y or .z");
  }
}

Opd Decoder::src_pred(const Operand& o) {
  if (o.kind == Operand::kInt) return constant(o.value != 0, 1);
  if (o.kind == Operand::kSpecial) return src(o, T::kPred);
  if (o.kind != Operand::kReg || register_bits(o.reg) != 1) fail(s.op_text + " needs a predicate here");
  Opd result;
  result.present = 1;
  result.offset = static_cast<uint32_t>(o.reg);
  result.negated = o.negated;
  uses.push_back(result.offset);
  return result;
}

int64_t Decoder::immediate(size_t i) const {
  if (i >= count() || operand(i).kind != Operand::kInt) {
    fail("operand " + std::to_string(i + 1) + " of " + s.op_text + " must be an immediate");
  }
  return operand(i).value;
}

uint32_t Decoder::carry_place() {
  auto [found, added] = program_.specials.try_emplace("carry", program_.register_bytes);
  if (added) program_.register_bytes += 256;
  return found->second;
}

std::vector<const Operand*> Decoder::elements(const Operand& o) const {
  std::vector<const Operand*> result;
  if (o.kind == Operand::kVector) {
    for (const Operand& part : o.parts) result.push_back(&part);
  } else {
    result.push_back(&o);
  }
  return result;
}

void Decoder::pool(std::vector<Opd> operands) {
  program_.pools.push_back(std::make_unique<std::vector<Opd>>(std::move(operands)));
  in.x = program_.pools.back()->data();
  in.nx = static_cast<uint32_t>(program_.pools.back()->size());
}

Opd Decoder::address(const Operand& o, Space space) {
  if (o.kind != Operand::kAddress) fail(s.op_text + " needs an address in brackets");
  in.imm = o.value;
  if (o.parts.empty()) {
    Opd result = constant(0, 64);
    result.negated = 1;
    return result;
  }
  const Operand& base = o.parts[0];
  if (base.kind == Operand::kReg) {
    uint32_t bits = register_bits(base.reg);
    if (bits != 32 && bits != 64) fail("an address register has 32 or 64 bits");
    Opd result;
    result.present = 1;
    result.offset = static_cast<uint32_t>(base.reg);
    result.negated = bits == 64;  // an address operand: 1 for 64-bit registers
    uses.push_back(result.offset);
    return result;
  }
  if (base.kind == Operand::kSymbol) {
    const Symbol& symbol = *base.symbol;
    if (symbol.space == Space::kGlobal) {
      if (space != Space::kGlobal && space != Space::kGeneric) fail(symbol.name + " is a .global variable");
      Operand copy = base;
      Opd result = src(copy, T::kU64);
      result.negated = 1;
      return result;
    }
    bool generic = space == Space::kGeneric;
    if (!generic && symbol.space != space)
      fail(symbol.name + " lies in another state space than " + s.op_text + " accesses");
    Opd result = constant(symbol_address(symbol, generic), 64);
    result.negated = 1;
    return result;
  }
  fail("address form is not supported in " + s.op_text);
}

}  // namespace mla::emu

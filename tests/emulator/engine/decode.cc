// SPDX-License-Identifier: Apache-2.0
//
// From statements to instructions: operands, control flow (reconvergence points are immediate
// post-dominators), and placement of virtual registers in a compact register file.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

namespace {

struct TypeRow {
  const char* name;
  T type;
  uint32_t bits;
};

constexpr TypeRow kRows[] = {
    {"pred", T::kPred, 1},
    {"b8", T::kB8, 8},
    {"b16", T::kB16, 16},
    {"b32", T::kB32, 32},
    {"b64", T::kB64, 64},
    {"b128", T::kB128, 128},
    {"u8", T::kU8, 8},
    {"u16", T::kU16, 16},
    {"u32", T::kU32, 32},
    {"u64", T::kU64, 64},
    {"s8", T::kS8, 8},
    {"s16", T::kS16, 16},
    {"s32", T::kS32, 32},
    {"s64", T::kS64, 64},
    {"f16", T::kF16, 16},
    {"bf16", T::kBF16, 16},
    {"f32", T::kF32, 32},
    {"f64", T::kF64, 64},
    {"f16x2", T::kF16x2, 32},
    {"bf16x2", T::kBF16x2, 32},
    {"e4m3x2", T::kE4M3x2, 16},
    {"e5m2x2", T::kE5M2x2, 16},
    {"e4m3", T::kE4M3, 8},
    {"e5m2", T::kE5M2, 8},
    {"ue8m0x2", T::kUE8M0x2, 16},
    {"ue8m0", T::kUE8M0, 8},
    {"tf32", T::kTF32, 32},
    {"u16x2", T::kU16x2, 32},
    {"s16x2", T::kS16x2, 32},
};

uint32_t bits_of_class(RegClass cls) {
  switch (cls) {
    case RegClass::kPred:
      return 1;
    case RegClass::k8:
      return 8;
    case RegClass::k16:
      return 16;
    case RegClass::k32:
      return 32;
    case RegClass::k64:
      return 64;
    case RegClass::k128:
      return 128;
  }
  return 0;
}

// Bytes in the register file, for 32 lanes.
uint32_t slot_bytes(uint32_t bits) { return bits == 1 ? 4 : bits <= 32 ? 128 : bits == 64 ? 256 : 512; }

constexpr uint8_t kFixed = 2;  // Opd::constant before placement: the offset is final already

}  // namespace

uint32_t bits_of(T t) {
  for (const TypeRow& row : kRows) {
    if (row.type == t) return row.bits;
  }
  return 0;
}

const char* type_name(T t) {
  for (const TypeRow& row : kRows) {
    if (row.type == t) return row.name;
  }
  return "?";
}

bool is_signed(T t) { return t == T::kS8 || t == T::kS16 || t == T::kS32 || t == T::kS64; }
bool is_float(T t) { return t == T::kF16 || t == T::kBF16 || t == T::kF32 || t == T::kF64; }

// ---------------------------------------------------------------- modifiers

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
    for (const TypeRow& row : kRows) {
      if (s.op[i] == row.name) {
        used_[i] = true;
        return row.type;
      }
    }
  }
  return fallback;
}

T Decoder::type() {
  T t = type_or(T::kNone);
  if (t == T::kNone) fail("no type in " + s.op_text);
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

// ---------------------------------------------------------------- operands

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
  // Immediates repeat: look through the pool.
  for (uint32_t at = 0; at + size <= pool.size(); at += 128) {
    bool same = true;
    for (uint32_t i = 0; i < 32 && same; ++i) {
      uint64_t have = 0;
      std::memcpy(&have, pool.data() + at + i * unit, unit);
      same = have == value;
    }
    if (same && bits <= 64) {
      bool patched = false;
      for (const auto& patch : program_.patches)
        patched |= at < patch.offset + 256 && patch.offset < at + size;
      if (!patched) {
        result.offset = at;
        return result;
      }
    }
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
      result.constant = kFixed;
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

// ---------------------------------------------------------------- control flow

namespace {

Next do_bra(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  if (mask == g.mask) {
    g.pc = in.target;
    return Next::kJump;
  }
  m.diverge(mask, in.target, g.pc + 1, in.reconverge);
  return Next::kJump;
}

// a[0]: number of targets; p: their pcs; o[1]: index.
Next do_brx(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  const uint32_t* index = lanes<uint32_t>(m, in.o[1]);
  const uint32_t* targets = static_cast<const uint32_t*>(in.p);
  uint32_t rest = g.mask & ~mask;
  if (rest) {  // lanes whose guard is false go on behind
    m.diverge(mask, g.pc, g.pc + 1, in.reconverge);
    return Next::kJump;
  }
  uint32_t first = index[__builtin_ctz(mask)];
  uint32_t same = 0;
  MLA_FOR_LANES(lane, mask) {
    if (index[lane] >= in.a[0]) {
      return m.fault(FaultKind::kInstruction, static_cast<int>(lane), "brx.idx with index %u of %u targets",
                     index[lane], in.a[0]);
    }
    if (index[lane] == first) same |= 1u << lane;
  }
  if (same == mask) {
    g.pc = targets[first];
    return Next::kJump;
  }
  // The others execute this instruction again.
  m.diverge(same, targets[first], g.pc, in.reconverge);
  return Next::kJump;
}

Next do_exit(Machine& m, const Instr&, uint32_t mask) { return m.exit_lanes(mask); }

Next do_ret(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  if (g.calls.empty()) return m.exit_lanes(mask);
  if (mask != g.mask) {
    m.diverge(mask, g.pc, g.pc + 1, in.reconverge);
    return Next::kJump;
  }
  g.pc = g.calls.back();
  g.calls.pop_back();
  return Next::kJump;
}

struct CallCopy {
  uint32_t from, to, bytes;
};

struct CallTable {
  std::vector<CallCopy> in, out;
};

Next copy_frame(Machine& m, const std::vector<CallCopy>& copies, uint32_t mask) {
  for (const CallCopy& copy : copies) {
    MLA_FOR_LANES(lane, mask) {
      uint8_t* frame = m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
      std::memmove(frame + copy.to, frame + copy.from, copy.bytes);
    }
  }
  return Next::kNext;
}

Next do_call(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  if (mask != g.mask) {
    m.diverge(mask, g.pc, g.pc + 1, g.pc + 1);
    return Next::kJump;
  }
  copy_frame(m, static_cast<const CallTable*>(in.p)->in, mask);
  g.calls.push_back(g.pc + 1);
  g.pc = in.target;
  return Next::kJump;
}

// Follows a call: results back into the caller's .param variables.
Next do_after_call(Machine& m, const Instr& in, uint32_t mask) {
  return copy_frame(m, static_cast<const CallTable*>(in.p)->out, mask);
}

std::string device_string(Machine& m, uint64_t address) {
  std::string text;
  for (uint32_t i = 0; i < 4096; ++i) {
    char c = 0;
    if (address + i >= kConstWindow && address + i < kConstWindow + m.const_space.size()) {
      c = static_cast<char>(m.const_space[address + i - kConstWindow]);
    } else if (Region* region = m.region_of(address + i, 1)) {
      c = static_cast<char>(region->host[address + i - region->address]);
    } else {
      return text + "?";
    }
    if (!c) break;
    text += c;
  }
  return text;
}

// vprintf(format, arguments): arguments lie in local memory, each aligned to its size.
Next do_vprintf(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    uint8_t* frame = m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
    uint64_t format = 0, arguments = 0;
    std::memcpy(&format, frame + in.a[0], 8);
    std::memcpy(&arguments, frame + in.a[1], 8);
    std::string text = device_string(m, format);
    uint64_t at = 0;
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        out += text[i];
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == '%') {
        out += '%';
        ++i;
        continue;
      }
      std::string spec = "%";
      bool wide = false;
      ++i;
      while (i < text.size() && std::strchr("-+ #0123456789.hlzjt", text[i])) {
        wide |= text[i] == 'l' || text[i] == 'z' || text[i] == 'j' || text[i] == 't';
        if (!std::strchr("hlzjt", text[i])) spec += text[i];
        ++i;
      }
      char c = i < text.size() ? text[i] : 'd';
      bool is_float = std::strchr("aAeEfFgG", c) != nullptr;
      wide |= is_float || c == 'p' || c == 's';
      uint32_t size = wide ? 8 : 4;
      at = (at + size - 1) / size * size;
      uint64_t value = 0;
      if (arguments) {
        uint8_t* p = m.resolve(static_cast<int>(lane), Space::kGeneric, false, arguments + at, size, kRead);
        if (!p) return Next::kFault;
        std::memcpy(&value, p, size);
      }
      at += size;
      char buffer[128];
      if (c == 's') {
        out += device_string(m, value);
        continue;
      }
      if (is_float) {
        std::snprintf(buffer, sizeof buffer, (spec + c).c_str(), std::bit_cast<double>(value));
      } else if (c == 'd' || c == 'i') {
        long long v = wide ? static_cast<long long>(value) : static_cast<int32_t>(value);
        std::snprintf(buffer, sizeof buffer, (spec + "ll" + c).c_str(), v);
      } else if (c == 'c') {
        std::snprintf(buffer, sizeof buffer, "%c", static_cast<int>(value));
      } else {
        std::snprintf(buffer, sizeof buffer, (spec + "ll" + (c == 'p' ? 'x' : c)).c_str(),
                      static_cast<unsigned long long>(value));
      }
      out += buffer;
    }
    m.report->output += out;
    uint32_t result = static_cast<uint32_t>(out.size());
    std::memcpy(frame + in.a[2], &result, 4);
  }
  return Next::kNext;
}

Next do_assertfail(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t lane = static_cast<uint32_t>(__builtin_ctz(mask));
  uint8_t* frame = m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
  uint64_t message = 0, file = 0, function = 0;
  uint32_t line = 0;
  std::memcpy(&message, frame + in.a[0], 8);
  std::memcpy(&file, frame + in.a[1], 8);
  std::memcpy(&line, frame + in.a[2], 4);
  std::memcpy(&function, frame + in.a[3], 8);
  return m.fault(FaultKind::kTrap, static_cast<int>(lane), "assertion `%s` failed at %s:%u in %s",
                 device_string(m, message).c_str(), device_string(m, file).c_str(), line,
                 device_string(m, function).c_str());
}

Next do_trap(Machine& m, const Instr& in, uint32_t mask) {
  return m.fault(FaultKind::kTrap, __builtin_ctz(mask), "%s", in.a[0] ? "brkpt executed" : "trap executed");
}

Next do_nothing(Machine&, const Instr&, uint32_t) { return Next::kNext; }

// What a function decodes to before its registers have places.
struct Draft {
  const Function* function;
  std::vector<Instr> code;
  std::vector<std::vector<uint32_t>> defs, uses;
  std::vector<uint32_t> at;                         // statement -> index in code
  std::vector<std::string> target_label;            // of code[i], "" if none
  std::vector<std::vector<uint32_t>> more_targets;  // brx
  size_t first_pool = 0;
  uint32_t frame_base = 0;
};

class ProgramBuilder {
 public:
  ProgramBuilder(const ModuleImpl& module, Program& program) : module_(module), program_(program) {}

  void build(const Function& kernel) {
    program_.module = &module_;
    program_.kernel = &kernel;
    program_.static_shared = kernel.info.static_shared_bytes;
    uint32_t alignment = 16;
    for (const auto& symbol : module_.symbols) {
      if (symbol->dynamic) alignment = std::max(alignment, symbol->alignment);
    }
    program_.dynamic_base = (kSharedBegin + program_.static_shared + alignment - 1) / alignment * alignment;
    collect(kernel);
    for (const Function* function : program_.functions) {
      program_.local_bytes += (function->local_bytes + 15) / 16 * 16;
    }
    std::vector<Draft> drafts;
    for (const Function* function : program_.functions) drafts.push_back(draft(*function));
    for (Draft& d : drafts) place(d);
    uint32_t base = 0;
    std::map<const Function*, uint32_t> starts;
    for (Draft& d : drafts) {
      starts[d.function] = base;
      base += static_cast<uint32_t>(d.code.size());
    }
    for (Draft& d : drafts) {
      uint32_t start = starts[d.function];
      for (size_t i = 0; i < d.code.size(); ++i) {
        Instr in = d.code[i];
        if (in.fn == do_call) {
          in.target = starts[program_.functions[in.target]];
        } else if (!d.target_label[i].empty()) {
          in.target += start;
        }
        if (in.reconverge != kNowhere) in.reconverge += start;
        program_.code.push_back(in);
      }
    }
    for (auto& [table, start] : brx_tables_) {
      for (uint32_t& target : *table) target += starts[start];
    }
  }

 private:
  void unsupported(const Function&, const Statement& s, const std::string& message) {
    program_.unsupported.push_back(module_.name + ":" + std::to_string(s.line) + ": " + message + ": '" +
                                   trimmed(s.line) + "'");
  }

  std::string trimmed(uint32_t line) const {
    if (line == 0 || line > module_.lines.size()) return "";
    const std::string& text = module_.lines[line - 1];
    size_t a = text.find_first_not_of(" \t"), b = text.find_last_not_of(" \t\r");
    return a == std::string::npos ? "" : text.substr(a, b - a + 1);
  }

  void collect(const Function& f) {
    if (std::find(stack_.begin(), stack_.end(), &f) != stack_.end()) {
      program_.unsupported.push_back(module_.name + ":" + std::to_string(f.line) + ": recursive calls (" +
                                     f.name + ") are not supported");
      return;
    }
    if (std::find(program_.functions.begin(), program_.functions.end(), &f) != program_.functions.end())
      return;
    program_.functions.push_back(&f);
    stack_.push_back(&f);
    for (const Statement& s : f.statements) {
      if (s.op[0] != "call") continue;
      for (const Operand& o : s.operands) {
        if (o.kind != Operand::kName) continue;
        auto found = module_.function_names.find(o.text);
        if (found != module_.function_names.end() && found->second->defined) collect(*found->second);
      }
    }
    stack_.pop_back();
  }

  uint32_t function_index(const Function* f) const {
    return static_cast<uint32_t>(std::find(program_.functions.begin(), program_.functions.end(), f) -
                                 program_.functions.begin());
  }

  uint32_t frame_base(const Function* f) const {
    uint32_t base = 0;
    for (const Function* other : program_.functions) {
      if (other == f) return base;
      base += (other->param_bytes + 15) / 16 * 16;
    }
    return base;
  }

  Draft draft(const Function& f) {
    Draft d;
    d.function = &f;
    d.first_pool = program_.pools.size();
    d.frame_base = frame_base(&f);
    program_.frame_bytes = std::max(program_.frame_bytes, d.frame_base + (f.param_bytes + 15) / 16 * 16);
    uint32_t index = function_index(&f);
    for (size_t i = 0; i < f.statements.size(); ++i) {
      const Statement& s = f.statements[i];
      d.at.push_back(static_cast<uint32_t>(d.code.size()));
      Decoder decoder(program_, f, s, d.frame_base);
      std::string label;
      try {
        if (s.guard >= 0) {
          Operand guard;
          guard.kind = Operand::kReg;
          guard.reg = s.guard;
          guard.negated = s.guard_negated;
          decoder.in.guard = decoder.src_pred(guard);
        }
        label = decode_one(decoder, d);
      } catch (const Unsupported& problem) {
        unsupported(f, s, problem.message);
        decoder.in.fn = do_nothing;
      }
      push(d, decoder, label, index);
      if (after_call_) {
        Decoder after(program_, f, s, d.frame_base);
        after.in.guard = decoder.in.guard;
        after.uses = decoder.uses;
        after.in.fn = do_after_call;
        after.in.p = after_call_;
        after_call_ = nullptr;
        push(d, after, "", index);
      }
    }
    d.at.push_back(static_cast<uint32_t>(d.code.size()));
    Statement end;
    end.op = {"ret"};
    end.op_text = "ret";
    end.line = f.statements.empty() ? f.line : f.statements.back().line;
    Decoder decoder(program_, f, end, d.frame_base);
    decoder.in.fn = do_ret;
    push(d, decoder, "", index);
    // Labels to indices.
    for (size_t i = 0; i < d.code.size(); ++i) {
      if (d.target_label[i].empty()) continue;
      d.code[i].target = d.at[f.labels.at(d.target_label[i])];
    }
    return d;
  }

  void push(Draft& d, Decoder& decoder, const std::string& label, uint32_t index) {
    Instr in = decoder.in;
    in.line = decoder.s.line;
    in.loc = decoder.s.loc;
    in.function = index;
    auto [found, added] =
        opcode_index_.try_emplace(decoder.s.op_text, static_cast<uint32_t>(program_.opcodes.size()));
    if (added) program_.opcodes.push_back(decoder.s.op_text);
    in.opcode = found->second;
    d.code.push_back(in);
    d.defs.push_back(std::move(decoder.defs));
    d.uses.push_back(std::move(decoder.uses));
    d.target_label.push_back(label);
    d.more_targets.emplace_back();
    if (!targets_.empty()) d.more_targets.back() = std::move(targets_);
    targets_.clear();
  }

  // Returns the label that the instruction branches to, if any.
  std::string decode_one(Decoder& d, Draft& draft) {
    const std::string& name = d.name();
    const Function& f = d.function();
    if (name == "bra") {
      d.mod("uni");
      d.need(1);
      d.finish();
      if (d.operand(0).kind != Operand::kName) d.fail("bra needs a label");
      if (!f.labels.count(d.operand(0).text)) d.fail("label " + d.operand(0).text + " is not defined");
      d.in.fn = do_bra;
      return d.operand(0).text;
    }
    if (name == "brx") {
      if (!d.mod("idx")) d.fail("only brx.idx is supported");
      d.mod("uni");
      d.need(2);
      d.finish();
      d.in.o[1] = d.src(0, T::kU32);
      std::string list = d.operand(1).text;
      auto found = f.branch_targets.find(list.substr(0, list.find('@')));
      if (found == f.branch_targets.end()) d.fail("branch target list " + list + " is not defined");
      auto table = std::make_unique<std::vector<uint32_t>>();
      for (const std::string& label : found->second) {
        if (!f.labels.count(label)) d.fail("label " + label + " is not defined");
        targets_.push_back(f.labels.at(label));  // statement indices until place()
        table->push_back(0);
      }
      d.in.fn = do_brx;
      d.in.a[0] = static_cast<uint32_t>(table->size());
      d.in.p = table->data();
      program_.tables.push_back(std::move(table));
      (void)draft;
      return "";
    }
    if (name == "exit") {
      d.need(0);
      d.finish();
      d.in.fn = do_exit;
      return "";
    }
    if (name == "ret") {
      d.mod("uni");
      d.need(0);
      d.finish();
      d.in.fn = f.entry ? do_exit : do_ret;
      return "";
    }
    if (name == "trap" || name == "brkpt") {
      d.need(0);
      d.finish();
      d.in.fn = do_trap;
      d.in.a[0] = name == "brkpt";
      return "";
    }
    if (name == "call") {
      call(d);
      return "";
    }
    if (decode_arithmetic(d) || decode_float(d) || decode_convert(d) || decode_memory(d) ||
        decode_barrier(d) || decode_async(d) || decode_matrix(d) || decode_warp(d)) {
      d.finish();
      return "";
    }
    d.fail("unknown instruction " + d.s.op_text);
  }

  void call(Decoder& d) {
    d.mod("uni");
    d.finish();
    size_t at = 0;
    std::vector<Operand> results, arguments;
    if (at < d.count() && d.operand(at).kind == Operand::kTuple) results = d.operand(at++).parts;
    if (at >= d.count() || d.operand(at).kind != Operand::kName) d.fail("indirect calls are not supported");
    std::string callee_name = d.operand(at++).text;
    if (at < d.count() && d.operand(at).kind == Operand::kTuple) arguments = d.operand(at++).parts;
    if (at != d.count()) d.fail("indirect calls are not supported");
    auto offset = [&](const Operand& o) {
      if (o.kind != Operand::kSymbol || o.symbol->space != Space::kParam)
        d.fail("call operands must be .param variables");
      return static_cast<uint32_t>(o.symbol->offset) + d.frame_base();
    };
    if (callee_name == "vprintf") {
      if (arguments.size() != 2 || results.size() != 1) d.fail("vprintf takes two arguments");
      d.in.fn = do_vprintf;
      d.in.a[0] = offset(arguments[0]);
      d.in.a[1] = offset(arguments[1]);
      d.in.a[2] = offset(results[0]);
      return;
    }
    if (callee_name == "__assertfail") {
      if (arguments.size() != 5) d.fail("__assertfail takes five arguments");
      d.in.fn = do_assertfail;
      for (int i = 0; i < 4; ++i) d.in.a[i] = offset(arguments[static_cast<size_t>(i)]);
      return;
    }
    auto found = module_.function_names.find(callee_name);
    if (found == module_.function_names.end() || !found->second->defined) {
      d.fail("function " + callee_name + " has no body in this module");
    }
    const Function* callee = found->second;
    if (callee->params.size() != arguments.size() || callee->returns.size() != results.size()) {
      d.fail("call of " + callee_name + " with another number of operands than it declares");
    }
    uint32_t callee_base = frame_base(callee);
    auto table = std::make_shared<CallTable>();
    for (size_t i = 0; i < arguments.size(); ++i) {
      table->in.push_back({offset(arguments[i]),
                           static_cast<uint32_t>(callee->params[i]->offset) + callee_base,
                           static_cast<uint32_t>(callee->params[i]->bytes)});
    }
    for (size_t i = 0; i < results.size(); ++i) {
      table->out.push_back({static_cast<uint32_t>(callee->returns[i]->offset) + callee_base,
                            offset(results[i]), static_cast<uint32_t>(callee->returns[i]->bytes)});
    }
    d.in.fn = do_call;
    d.in.target = function_index(callee);
    d.in.p = table.get();
    after_call_ = table.get();
    program_.call_tables.push_back(std::move(table));
  }

  // ---- control flow graph, reconvergence, liveness, places

  void place(Draft& d) {
    size_t n = d.code.size();
    const Function& f = *d.function;
    std::vector<std::vector<uint32_t>> more(n);
    for (size_t i = 0; i < n; ++i) {
      for (uint32_t statement : d.more_targets[i]) more[i].push_back(d.at[statement]);
      if (!more[i].empty()) {
        auto* table = const_cast<uint32_t*>(static_cast<const uint32_t*>(d.code[i].p));
        for (size_t k = 0; k < more[i].size(); ++k) table[k] = more[i][k];
        for (auto& owned : program_.tables) {
          if (owned->data() == table) brx_tables_.push_back({owned.get(), d.function});
        }
      }
    }
    // Blocks.
    std::vector<uint8_t> leader(n + 1, 0);
    leader[0] = 1;
    auto is_end = [&](size_t i) {
      Handler fn = d.code[i].fn;
      return fn == do_bra || fn == do_brx || fn == do_exit || fn == do_ret || fn == do_trap ||
             fn == do_assertfail;
    };
    for (size_t i = 0; i < n; ++i) {
      if (!d.target_label[i].empty()) leader[d.code[i].target] = 1;
      for (uint32_t t : more[i]) leader[t] = 1;
      if (is_end(i)) leader[i + 1] = 1;
    }
    std::vector<uint32_t> block_of(n), starts;
    for (size_t i = 0; i < n; ++i) {
      if (leader[i]) starts.push_back(static_cast<uint32_t>(i));
      block_of[i] = static_cast<uint32_t>(starts.size() - 1);
    }
    size_t blocks = starts.size();
    auto end_of = [&](size_t b) { return b + 1 < blocks ? starts[b + 1] : static_cast<uint32_t>(n); };
    std::vector<std::vector<uint32_t>> next(blocks), previous(blocks + 1);
    const uint32_t exit_block = static_cast<uint32_t>(blocks);
    for (size_t b = 0; b < blocks; ++b) {
      uint32_t last = end_of(b) - 1;
      const Instr& in = d.code[last];
      bool guarded = in.guard.present;
      auto add = [&](uint32_t to) {
        if (std::find(next[b].begin(), next[b].end(), to) == next[b].end()) next[b].push_back(to);
      };
      if (in.fn == do_bra) add(block_of[in.target]);
      if (in.fn == do_brx) {
        for (uint32_t t : more[last]) add(block_of[t]);
      }
      if (in.fn == do_exit || in.fn == do_ret || in.fn == do_trap || in.fn == do_assertfail) add(exit_block);
      bool falls = !is_end(last) || guarded;
      if (falls) add(last + 1 < n ? block_of[last + 1] : exit_block);
      for (uint32_t to : next[b]) previous[to].push_back(static_cast<uint32_t>(b));
    }
    reconvergence(d, starts, next, previous, end_of);
    places(d, f, starts, next, end_of);
  }

  template <class EndOf>
  void reconvergence(Draft& d, const std::vector<uint32_t>& starts,
                     const std::vector<std::vector<uint32_t>>& next,
                     const std::vector<std::vector<uint32_t>>& previous, EndOf end_of) {
    size_t blocks = starts.size();
    const uint32_t exit_block = static_cast<uint32_t>(blocks);
    // Post-dominators: reverse post-order of the reversed graph, then the iteration of Cooper,
    // Harvey and Kennedy.
    std::vector<uint32_t> order;
    std::vector<uint8_t> seen(blocks + 1, 0);
    std::vector<std::pair<uint32_t, size_t>> stack{{exit_block, 0}};
    seen[exit_block] = 1;
    while (!stack.empty()) {
      auto& [block, at] = stack.back();
      if (at < previous[block].size()) {
        uint32_t to = previous[block][at++];
        if (!seen[to]) {
          seen[to] = 1;
          stack.push_back({to, 0});
        }
      } else {
        order.push_back(block);
        stack.pop_back();
      }
    }
    std::vector<uint32_t> number(blocks + 1, kNowhere);
    for (size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<uint32_t>(i);
    std::vector<uint32_t> dominator(blocks + 1, kNowhere);
    dominator[exit_block] = exit_block;
    bool changed = true;
    while (changed) {
      changed = false;
      for (size_t i = order.size(); i-- > 0;) {
        uint32_t b = order[i];
        if (b == exit_block) continue;
        uint32_t best = kNowhere;
        for (uint32_t to : next[b]) {
          if (dominator[to] == kNowhere) continue;
          if (best == kNowhere) {
            best = to;
            continue;
          }
          uint32_t x = best, y = to;
          while (x != y) {
            while (number[x] < number[y]) x = dominator[x];
            while (number[y] < number[x]) y = dominator[y];
          }
          best = x;
        }
        if (best != dominator[b]) {
          dominator[b] = best;
          changed = true;
        }
      }
    }
    for (size_t b = 0; b < blocks; ++b) {
      Instr& in = d.code[end_of(b) - 1];
      if (in.fn != do_bra && in.fn != do_brx && in.fn != do_ret) continue;
      uint32_t to = dominator[b];
      in.reconverge = to == kNowhere || to == exit_block ? kNowhere : starts[to];
    }
  }

  template <class EndOf>
  void places(Draft& d, const Function& f, const std::vector<uint32_t>& starts,
              const std::vector<std::vector<uint32_t>>& next, EndOf end_of) {
    size_t blocks = starts.size();
    size_t regs = f.regs.size();
    size_t words = (regs + 63) / 64;
    std::vector<uint64_t> gen(blocks * words), kill(blocks * words), live_in(blocks * words),
        live_out(blocks * words);
    auto bit = [&](std::vector<uint64_t>& set, size_t b, uint32_t r) -> bool {
      return (set[b * words + r / 64] >> (r % 64)) & 1;
    };
    auto set_bit = [&](std::vector<uint64_t>& set, size_t b, uint32_t r) {
      set[b * words + r / 64] |= uint64_t{1} << (r % 64);
    };
    for (size_t b = 0; b < blocks; ++b) {
      for (uint32_t i = starts[b]; i < end_of(b); ++i) {
        for (uint32_t r : d.uses[i]) {
          if (!bit(kill, b, r)) set_bit(gen, b, r);
        }
        if (d.code[i].guard.present) continue;  // a guarded write does not end the old value's life
        for (uint32_t r : d.defs[i]) set_bit(kill, b, r);
      }
    }
    bool changed = true;
    while (changed) {
      changed = false;
      for (size_t b = blocks; b-- > 0;) {
        for (size_t w = 0; w < words; ++w) {
          uint64_t out = 0;
          for (uint32_t to : next[b]) {
            if (to < blocks) out |= live_in[to * words + w];
          }
          uint64_t in = gen[b * words + w] | (out & ~kill[b * words + w]);
          changed |= in != live_in[b * words + w];
          live_out[b * words + w] = out;
          live_in[b * words + w] = in;
        }
      }
    }
    // Intervals over the linear order.
    std::vector<uint32_t> first(regs, kNowhere), last(regs, 0);
    auto touch = [&](uint32_t r, uint32_t at) {
      first[r] = std::min(first[r], at);
      last[r] = std::max(last[r], at);
    };
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t w = 0; w < words; ++w) {
        for (uint64_t set = live_in[b * words + w]; set; set &= set - 1) {
          touch(static_cast<uint32_t>(w * 64 + static_cast<size_t>(std::countr_zero(set))), starts[b]);
        }
        for (uint64_t set = live_out[b * words + w]; set; set &= set - 1) {
          touch(static_cast<uint32_t>(w * 64 + static_cast<size_t>(std::countr_zero(set))), end_of(b) - 1);
        }
      }
      for (uint32_t i = starts[b]; i < end_of(b); ++i) {
        for (uint32_t r : d.uses[i]) touch(r, i);
        for (uint32_t r : d.defs[i]) touch(r, i);
      }
    }
    std::vector<uint32_t> order;
    for (uint32_t r = 0; r < regs; ++r) {
      if (first[r] != kNowhere) order.push_back(r);
    }
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return std::pair(first[a], a) < std::pair(first[b], b); });
    std::vector<uint32_t> place(regs, 0);
    std::map<uint32_t, std::vector<uint32_t>> free_places;  // by size
    std::vector<std::pair<uint32_t, uint32_t>> active;      // heap of (last, register)
    auto later = std::greater<std::pair<uint32_t, uint32_t>>();
    uint32_t& top = program_.register_bytes;
    for (uint32_t r : order) {
      while (!active.empty() && active.front().first < first[r]) {
        uint32_t done = active.front().second;
        std::pop_heap(active.begin(), active.end(), later);
        active.pop_back();
        free_places[slot_bytes(bits_of_class(f.regs[done].cls))].push_back(place[done]);
      }
      uint32_t size = slot_bytes(bits_of_class(f.regs[r].cls));
      auto& free = free_places[size];
      if (!free.empty()) {
        place[r] = free.back();
        free.pop_back();
      } else if (size == 4) {  // predicates: a line of 32 at a time
        for (uint32_t k = 31; k > 0; --k) free.push_back(top + 4 * k);
        place[r] = top;
        top += 128;
      } else {
        place[r] = top;
        top += size;
      }
      active.push_back({last[r], r});
      std::push_heap(active.begin(), active.end(), later);
    }
    auto settle = [&](Opd& o) {
      if (!o.present) return;
      if (o.constant == 0) {
        o.offset = place[o.offset];
      } else if (o.constant == kFixed) {
        o.constant = 0;
      }
    };
    std::set<const Opd*> done;
    for (Instr& in : d.code) {
      settle(in.guard);
      for (Opd& o : in.o) settle(o);
      if (in.x && done.insert(in.x).second) {
        for (uint32_t k = 0; k < in.nx; ++k) settle(const_cast<Opd&>(in.x[k]));
      }
    }
  }

  const ModuleImpl& module_;
  Program& program_;
  std::vector<const Function*> stack_;
  std::map<std::string, uint32_t> opcode_index_;
  std::vector<uint32_t> targets_;
  const CallTable* after_call_ = nullptr;
  std::vector<std::pair<std::vector<uint32_t>*, const Function*>> brx_tables_;
};

}  // namespace

std::shared_ptr<Program> decode(const ModuleImpl& module, const Function& kernel) {
  auto program = std::make_shared<Program>();
  ProgramBuilder(module, *program).build(kernel);
  return program;
}

}  // namespace mla::emu

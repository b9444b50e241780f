// SPDX-License-Identifier: Apache-2.0
//
// Directives of a module, and variables of every state space.
#include <algorithm>
#include <bit>
#include <charconv>

#include "tests/emulator/engine/parse/reader.h"

namespace mla::emu {

void Reader::run() {
  skip();
  while (position_ < text_.size()) top_level();
  if (module_.version == 0) fail("no .version directive: this is not a PTX module");
  if (module_.target.empty()) fail("no .target directive");
  for (const auto& function : module_.functions) {
    if (function->entry && !module_.function_names.at(function->name)->defined)
      fail("kernel " + function->name + " is declared but has no body");
  }
}

void Reader::top_level() {
  if (peek() != '.') fail("expected a directive, found " + found());
  const uint32_t start_line = line_;
  const std::string directive = dot_word();
  if (directive == "version") {
    version();
  } else if (directive == "target") {
    target();
  } else if (directive == "address_size") {
    if (integer() != 64) fail_here(".address_size must be 64");
  } else if (directive == "file") {
    const uint32_t index = static_cast<uint32_t>(integer());
    module_.files[index] = quoted();
    while (accept(',')) integer();
  } else if (directive == "section") {
    dot_word();
    skip_braces();
  } else if (directive == "pragma") {
    skip_to_semicolon();
  } else if (directive == "loc") {
    while (at_number()) integer();
  } else if (directive == "extern" || directive == "visible" || directive == "weak" ||
             directive == "common") {
    linkage_ = directive;
    return;
  } else if (directive == "entry" || directive == "func") {
    function(directive == "entry");
    linkage_.clear();
  } else if (directive == "global" || directive == "const" || directive == "shared") {
    variable(directive, nullptr);
    linkage_.clear();
  } else {
    line_ = start_line;
    fail_here("unknown directive ." + shown(directive));
  }
}

void Reader::version() {
  const size_t begin = position_;
  while ((peek() >= '0' && peek() <= '9') || peek() == '.') ++position_;
  const std::string_view text = text_.substr(begin, position_ - begin);
  const char* const end = text.data() + text.size();
  uint32_t major = 0, minor = 0;
  auto result = std::from_chars(text.data(), end, major);
  const bool large = result.ec == std::errc::result_out_of_range;
  bool ok = result.ptr != end && *result.ptr == '.';
  if (ok) {
    result = std::from_chars(result.ptr + 1, end, minor);
    ok = result.ptr == end && result.ec != std::errc::invalid_argument;
  }
  if (!ok) fail(".version needs major.minor, found '" + shown(text) + "'");
  if (large || result.ec != std::errc() || major < 6 || major > 9 || minor > 9) {
    fail_here("PTX version " + shown(text) + " is not supported: the emulator reads 6.0 to 9.x");
  }
  module_.version = major * 10 + minor;
  skip();
}

void Reader::target() {
  const std::string name = word();
  const char* const end = name.data() + name.size();
  uint32_t sm = 0;
  char suffix = 0;
  if (name.rfind("sm_", 0) != 0) fail_here("unknown target '" + shown(name) + "'");
  const auto [rest, code] = std::from_chars(name.data() + 3, end, sm);
  if (rest != end) suffix = *rest;
  if (code != std::errc() || sm > 9999 || end - rest > 1 || (suffix && suffix != 'a' && suffix != 'f'))
    fail_here("unknown target '" + shown(name) + "'");
  if (sm < 80) fail_here("target " + name + " is not supported: the emulator executes sm_80 and later");
  if (suffix == 'f' && sm < 100) fail_here("unknown target '" + name + "': the suffix f starts with sm_100f");
  if (suffix == 'a' && sm < 90) fail_here("unknown target '" + name + "': the suffix a starts with sm_90a");
  module_.target = name;
  module_.sm = sm;
  module_.suffix = suffix;
  while (accept(',')) word();
}

// ---------------------------------------------------------------- variables

Reader::Declarator Reader::declarator_head() {
  Declarator d;
  for (;;) {
    const std::string part = dot_word();
    if (part.empty()) break;
    if (part == "align") {
      d.alignment = static_cast<uint32_t>(integer_in(".align", 1, limits::kAlignment));
      if (d.alignment & (d.alignment - 1)) fail(".align needs a power of two");
    } else if (part == "v2" || part == "v4") {
      d.vector = part == "v2" ? 2 : 4;
    } else if (part == "ptr") {
      d.pointer = true;
      for (;;) {
        const std::string more = dot_word();
        if (more.empty()) break;
        if (more == "align") {
          integer();
        } else if (more != "global" && more != "shared" && more != "const" && more != "local") {
          fail("unknown pointer attribute ." + shown(more));
        }
      }
      break;
    } else if (part == "attribute") {
      skip_parens();
    } else if (const TypeInfo* type = find_type(part)) {
      d.type = type;
    } else {
      fail_here("unknown type ." + shown(part));
    }
  }
  if (!d.type) fail("declaration without a type");
  return d;
}

void Reader::declarator_name(Declarator* d) {
  d->name = word();
  while (accept('[')) {
    d->is_array = true;
    if (accept(']')) {
      d->open_array = true;
      continue;
    }
    const int64_t count = integer();
    if (count < 0) fail("array " + shown(d->name) + " has a length of " + std::to_string(count));
    uint64_t product = 0;
    if (__builtin_mul_overflow(d->count, static_cast<uint64_t>(count), &product))
      product = ~uint64_t{0};  // refused by bytes_of
    d->count = product;
    expect(']');
  }
}

uint64_t Reader::bytes_of(const Declarator& d, uint64_t most) const {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(d.count, uint64_t{d.type->bytes} * d.vector, &bytes) || bytes > most) {
    fail("variable " + shown(d.name) + " is larger than the " + std::to_string(most) +
         " bytes that are supported");
  }
  return bytes;
}

uint32_t Reader::alignment_of(const Declarator& d) const {
  return d.alignment ? d.alignment : d.type->bytes * d.vector;
}

uint64_t Reader::reserve(uint32_t* used, const Symbol& symbol, uint64_t most) const {
  const uint32_t offset = round_up(*used, symbol.alignment);
  if (offset + symbol.bytes > most) {
    fail("variables up to " + shown(symbol.name) + " take " + std::to_string(offset + symbol.bytes) +
         " bytes, more than the " + std::to_string(most) + " that are supported");
  }
  *used = static_cast<uint32_t>(offset + symbol.bytes);
  return offset;
}

void Reader::variable(const std::string& space, Function* function) {
  Declarator d = declarator_head();
  do {
    d.count = 1;
    d.is_array = d.open_array = false;
    declarator_name(&d);
    auto symbol = std::make_unique<Symbol>();
    symbol->name = d.name;
    symbol->alignment = alignment_of(d);
    if (space == "shared") {
      symbol->space = Space::kShared;
      symbol->bytes = d.open_array ? 0 : bytes_of(d, limits::kSharedBytes);
      if (linkage_ == "extern") {
        symbol->dynamic = true;
      } else {
        symbol->offset = reserve(function ? &function->shared_bytes : &module_.shared_bytes, *symbol,
                                 limits::kSharedBytes);
      }
    } else if (space == "local") {
      symbol->space = Space::kLocal;
      symbol->bytes = d.open_array ? 0 : bytes_of(d, limits::kLocalBytes);
      symbol->offset = reserve(&function->local_bytes, *symbol, limits::kLocalBytes);
    } else {
      initialised_variable(d, space == "const", symbol.get());
    }
    const Symbol* pointer = symbol.get();
    if (function) {
      scopes_.back().symbols[d.name] = pointer;
      function->symbols.push_back(std::move(symbol));
    } else {
      module_.symbol_names[d.name] = pointer;
      module_.symbols.push_back(std::move(symbol));
    }
  } while (accept(','));
  expect(';');
}

// .global and .const.
void Reader::initialised_variable(const Declarator& d, bool constant, Symbol* symbol) {
  GlobalInfo info;
  info.name = d.name;
  info.alignment = symbol->alignment;
  info.constant = constant;
  std::vector<uint8_t> initial;
  const uint32_t index = static_cast<uint32_t>(module_.globals.size());
  symbol->bytes = d.open_array ? 0 : bytes_of(d, limits::kVariableBytes);
  if (accept('=')) initialiser(d, index, &initial, 0);
  if (d.open_array) symbol->bytes = initial.size();
  if (initial.size() > symbol->bytes) {
    fail("variable " + shown(d.name) + " has " + std::to_string(symbol->bytes) + " bytes, its initialiser " +
         std::to_string(initial.size()));
  }
  variable_bytes_ += symbol->bytes + info.alignment;
  if (variable_bytes_ > limits::kVariableBytes) {
    fail("the variables of the module take more than the " + std::to_string(limits::kVariableBytes) +
         " bytes that are supported");
  }
  initial.resize(symbol->bytes);
  info.bytes = static_cast<uint32_t>(symbol->bytes);
  symbol->space = constant ? Space::kConst : Space::kGlobal;
  if (constant) {
    const uint32_t at =
        round_up(static_cast<uint32_t>(module_.constants.size()), std::max(16u, info.alignment));
    module_.constants.resize(at);
    module_.constants.insert(module_.constants.end(), initial.begin(), initial.end());
    symbol->offset = at;
  } else {
    symbol->offset = index;
  }
  info.initial = std::move(initial);
  module_.globals.push_back(std::move(info));
}

void Reader::initialiser(const Declarator& d, uint32_t global, std::vector<uint8_t>* bytes, uint32_t depth) {
  if (depth > limits::kNesting)
    fail("an initialiser is nested deeper than " + std::to_string(limits::kNesting));
  if (accept('{')) {
    while (!accept('}')) {
      initialiser(d, global, bytes, depth + 1);
      if (!accept(',') && peek() != '}') fail("expected ',' or '}' in an initialiser");
    }
    return;
  }
  const uint32_t size = d.type->bytes;
  uint64_t value = 0;
  if (word_start(peek())) {
    std::string name = word();
    int64_t addend = 0;
    if (name == "generic") {
      expect('(');
      name = word();
      expect(')');
    }
    if (peek() == '+') {
      ++position_;
      skip();
      addend = integer();
    }
    const auto symbol = module_.symbol_names.find(name);
    if (symbol == module_.symbol_names.end())
      fail("initialiser names '" + shown(name) + "', which is not declared");
    if (size != 8) fail("the address of " + shown(name) + " needs a variable of 64 bits");
    if (symbol->second->space != Space::kGlobal && symbol->second->space != Space::kConst)
      fail("initialiser names '" + shown(name) + "', which is no .global or .const variable");
    module_.relocations.push_back({global, static_cast<uint32_t>(bytes->size()), symbol->second, addend});
  } else {
    const Operand operand = number();
    value = static_cast<uint64_t>(operand.value);
    if (operand.kind == Operand::kFloat && size == 4 && !operand.single) {
      value = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.value)));
    }
  }
  for (uint32_t i = 0; i < size; ++i) bytes->push_back(static_cast<uint8_t>(value >> (8 * std::min(i, 7u))));
  if (bytes->size() > limits::kVariableBytes) {
    fail("variable " + shown(d.name) + " is larger than the " + std::to_string(limits::kVariableBytes) +
         " bytes that are supported");
  }
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Functions: parameters, performance directives, scopes, registers, and what a body declares.
#include <algorithm>
#include <charconv>

#include "tests/emulator/engine/parse/reader.h"

namespace mla::emu {

namespace {

constexpr size_t kBranchTargets = std::string::npos;

// A label's name with the scope that declares it.
std::string scoped(const std::string& name, uint32_t scope) { return name + "@" + std::to_string(scope); }

}  // namespace

void Reader::parameter_list(Function* function, std::vector<const Symbol*>* out) {
  expect('(');
  while (!accept(')')) {
    const std::string space = dot_word();
    if (space != "param") fail("expected .param, found ." + shown(space));
    Declarator d = declarator_head();
    declarator_name(&d);
    auto symbol = std::make_unique<Symbol>();
    symbol->name = d.name;
    symbol->space = Space::kParam;
    symbol->alignment = alignment_of(d);
    symbol->bytes = bytes_of(d, limits::kParamBytes);
    symbol->offset = reserve(&function->param_bytes, *symbol, limits::kParamBytes);
    if (function->entry) {
      function->info.params.push_back({d.name, static_cast<uint32_t>(symbol->offset),
                                       static_cast<uint32_t>(symbol->bytes), symbol->alignment});
    }
    scopes_.back().symbols[d.name] = symbol.get();
    out->push_back(symbol.get());
    function->symbols.push_back(std::move(symbol));
    if (!accept(',') && peek() != ')') fail("expected ',' or ')' in a parameter list");
  }
}

Dim3 Reader::dims() {
  constexpr int64_t kMost = 0x7fffffff;
  Dim3 d;
  d.x = static_cast<uint32_t>(integer_in("a dimension", 0, kMost));
  if (accept(',')) d.y = static_cast<uint32_t>(integer_in("a dimension", 0, kMost));
  if (accept(',')) d.z = static_cast<uint32_t>(integer_in("a dimension", 0, kMost));
  return d;
}

void Reader::performance_directives(Function* f) {
  for (;;) {
    const std::string part = dot_word();
    if (part.empty()) return;
    if (part == "reqntid") {
      f->info.reqntid = dims();
    } else if (part == "maxntid") {
      f->info.maxntid = dims();
    } else if (part == "minnctapersm") {
      f->info.min_ctas_per_sm = static_cast<uint32_t>(integer_in(".minnctapersm", 0, 0x7fffffff));
    } else if (part == "maxnctapersm") {
      integer();
    } else if (part == "maxnreg") {
      f->info.max_registers = static_cast<uint32_t>(integer_in(".maxnreg", 0, 0x7fffffff));
    } else if (part == "reqnctapercluster") {
      f->info.cluster = dims();
    } else if (part == "explicitcluster") {
      f->info.explicit_cluster = true;
    } else if (part == "maxclusterrank") {
      f->info.max_cluster_rank = static_cast<uint32_t>(integer_in(".maxclusterrank", 0, 0x7fffffff));
    } else if (part == "pragma") {
      skip_to_semicolon();
    } else if (part == "abi_preserve" || part == "abi_preserve_control") {
      integer();
    } else if (part != "noreturn" && part != "blocksareclusters") {
      fail_here("unknown performance directive ." + shown(part));
    }
  }
}

void Reader::function(bool entry) {
  auto owned = std::make_unique<Function>();
  Function* f = owned.get();
  f->entry = entry;
  f->line = line_;
  scopes_.clear();
  scope_count_ = 0;
  open_scope();
  if (peek() == '.') {  // .attribute
    const std::string part = dot_word();
    if (part != "attribute") fail("unknown function attribute ." + shown(part));
    skip_parens();
  }
  if (!entry && peek() == '(') parameter_list(f, &f->returns);
  f->name = word();
  f->info.name = f->name;
  if (peek() == '(') parameter_list(f, &f->params);
  performance_directives(f);
  auto& by_name = module_.function_names[f->name];
  if (accept(';')) {
    if (!by_name) {
      by_name = f;
      module_.functions.push_back(std::move(owned));
    }
    return;
  }
  if (by_name && by_name->defined) fail("function " + shown(f->name) + " is defined twice");
  by_name = f;
  module_.functions.push_back(std::move(owned));
  f->defined = true;
  formal_param_bytes_ = f->param_bytes;
  expect('{');
  body(f);
  f->info.param_bytes = formal_param_bytes_;
  f->info.local_bytes = f->local_bytes;
}

// ---------------------------------------------------------------- scopes

void Reader::open_scope() {
  if (scopes_.size() >= limits::kScopes)
    fail("blocks are nested deeper than " + std::to_string(limits::kScopes));
  scopes_.emplace_back();
  scopes_.back().id = scope_count_++;
}

// References made in this scope are resolved if their label stands here, otherwise handed to the scope
// around it.
void Reader::close_scope(Function* f) {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (Pending& reference : scope.pending) {
    if (scope.labels.count(reference.name)) {
      resolve(f, reference, scope.id);
    } else if (!scopes_.empty()) {
      scopes_.back().pending.push_back(std::move(reference));
    } else if (reference.statement == kBranchTargets) {
      line_ = reference.line;
      fail("label " + shown(reference.name) + " is not defined");
    }
    // Otherwise a function name (call) keeps its text; everything else fails when it is decoded.
  }
}

void Reader::resolve(Function* f, const Pending& reference, uint32_t scope) {
  std::string name = scoped(reference.name, scope);
  if (reference.statement == kBranchTargets) {
    f->branch_targets[reference.list][reference.operand] = std::move(name);
  } else {
    f->statements[reference.statement].operands[reference.operand].text = std::move(name);
  }
}

void Reader::body(Function* f) {
  uint32_t loc = 0;
  for (;;) {
    if (position_ >= text_.size()) fail("function " + shown(f->name) + " has no closing '}'");
    if (accept('{')) {
      open_scope();
      continue;
    }
    if (accept('}')) {
      close_scope(f);
      if (scopes_.empty()) return;
      continue;
    }
    if (accept(';')) continue;
    if (peek() != '.') {
      instruction_or_label(f, loc);
      continue;
    }
    const std::string directive = dot_word();
    if (directive == "reg") {
      register_declaration(f);
    } else if (directive == "shared" || directive == "local") {
      variable(directive, f);
    } else if (directive == "param") {
      param_variable(f);
    } else if (directive == "loc") {
      f->locs.push_back(location());
      loc = static_cast<uint32_t>(f->locs.size() - 1);
    } else if (directive == "pragma") {
      skip_to_semicolon();
    } else if (directive == "global" || directive == "const") {
      variable(directive, nullptr);
    } else {
      fail_here("unknown directive ." + shown(directive) + " in a function");
    }
  }
}

Loc Reader::location() {
  Loc where;
  where.file = static_cast<uint32_t>(integer());
  where.line = static_cast<uint32_t>(integer());
  if (at_number()) integer();
  while (accept(',')) {
    if (!word_start(peek())) {
      integer();
      continue;
    }
    const std::string key = word();
    if (key == "function_name") {
      word();
      if (accept('+')) integer();
    } else if (key == "inlined_at") {
      integer();
      integer();
      integer();
    }
  }
  return where;
}

// ---------------------------------------------------------------- registers and other names

void Reader::register_declaration(Function* f) {
  const std::string type_name = dot_word();
  if (type_name == "v2" || type_name == "v4") fail("vector registers are not supported");
  const TypeInfo* type = find_type(type_name);
  if (!type) fail_here("unknown register type ." + shown(type_name));
  do {
    std::string name = word();
    if (accept('<')) {
      const int64_t count = integer();
      expect('>');
      if (count < 0)
        fail_here("register " + shown(name) + "<" + std::to_string(count) + "> has a negative count");
      declare_range(f, name, count, type->cls);
    } else {
      declare_register(f, std::move(name), type->cls);
    }
  } while (accept(','));
  expect(';');
}

void Reader::declare_register(Function* f, std::string name, RegClass cls) {
  declare_range(f, "", 0, cls);  // room for one more
  if (!scopes_.back().regs.emplace(name, static_cast<int32_t>(f->regs.size())).second) {
    fail_here("register " + shown(name) + " is declared twice");
  }
  ++module_.registers;
  f->regs.push_back({std::move(name), cls});
}

void Reader::declare_range(Function* f, const std::string& prefix, int64_t count, RegClass cls) {
  if (count > limits::kRegisters || static_cast<int64_t>(f->regs.size()) + count > limits::kRegisters) {
    fail_here("function " + shown(f->name) + " declares more than the " + std::to_string(limits::kRegisters) +
              " registers that are supported");
  }
  if (module_.registers + count > limits::kModuleRegisters) {
    fail_here("the module declares more than the " + std::to_string(limits::kModuleRegisters) +
              " registers that are supported");
  }
  if (prefix.empty()) return;
  if (!scopes_.back()
           .ranges.try_emplace(prefix, RegRange{static_cast<int32_t>(f->regs.size()), count})
           .second)
    fail_here("register " + shown(prefix) + "0 is declared twice");
  module_.registers += count;
  for (int64_t i = 0; i < count; ++i) f->regs.push_back({prefix + std::to_string(i), cls});
}

void Reader::param_variable(Function* f) {
  Declarator d = declarator_head();
  declarator_name(&d);
  expect(';');
  auto symbol = std::make_unique<Symbol>();
  symbol->name = d.name;
  symbol->space = Space::kParam;
  symbol->alignment = std::max(alignment_of(d), 8u);
  symbol->bytes = bytes_of(d, limits::kParamBytes);
  symbol->offset = reserve(&f->param_bytes, *symbol, uint64_t{limits::kParamBytes} * 16);
  f->param_bytes = round_up(f->param_bytes, 8);
  scopes_.back().symbols[d.name] = symbol.get();
  f->symbols.push_back(std::move(symbol));
}

int32_t Reader::find_register(const std::string& name) const {
  // Splits into a prefix and a number without leading zeros.
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  for (size_t i = scopes_.size(); i-- > 0;) {
    const Scope& scope = scopes_[i];
    const auto found = scope.regs.find(name);
    if (found != scope.regs.end()) return found->second;
    if (scope.ranges.empty()) continue;
    for (size_t at = std::max<size_t>(digits, 1); at < name.size() && at < digits + 8; ++at) {
      if (name[at] == '0' && at + 1 < name.size()) continue;
      const auto range = scope.ranges.find(name.substr(0, at));
      if (range == scope.ranges.end()) continue;
      int64_t number = -1;
      const auto [end, code] = std::from_chars(name.data() + at, name.data() + name.size(), number);
      if (code == std::errc() && number < range->second.count)
        return range->second.first + static_cast<int32_t>(number);
    }
  }
  return -1;
}

const Symbol* Reader::find_symbol(const std::string& name) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].symbols.find(name);
    if (found != scopes_[i].symbols.end()) return found->second;
  }
  const auto found = module_.symbol_names.find(name);
  return found == module_.symbol_names.end() ? nullptr : found->second;
}

}  // namespace mla::emu

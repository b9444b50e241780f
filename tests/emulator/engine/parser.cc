// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "tests/emulator/engine/ptx.h"

namespace mla::emu {

namespace {

// First shared-memory address that a kernel may use: hardware keeps the first KiB for itself.
constexpr uint32_t kSharedReserved = 1024;

struct SyntaxError {
  uint32_t line;
  std::string message;
};

struct TypeInfo {
  const char* name;
  uint32_t bytes;
  RegClass cls;
};

constexpr TypeInfo kTypes[] = {
    {"pred", 1, RegClass::kPred}, {"b8", 1, RegClass::k8},      {"u8", 1, RegClass::k8},
    {"s8", 1, RegClass::k8},      {"b16", 2, RegClass::k16},    {"u16", 2, RegClass::k16},
    {"s16", 2, RegClass::k16},    {"f16", 2, RegClass::k16},    {"bf16", 2, RegClass::k16},
    {"b32", 4, RegClass::k32},    {"u32", 4, RegClass::k32},    {"s32", 4, RegClass::k32},
    {"f32", 4, RegClass::k32},    {"f16x2", 4, RegClass::k32},  {"bf16x2", 4, RegClass::k32},
    {"b64", 8, RegClass::k64},    {"u64", 8, RegClass::k64},    {"s64", 8, RegClass::k64},
    {"f64", 8, RegClass::k64},    {"b128", 16, RegClass::k128},
};

const TypeInfo* find_type(std::string_view name) {
  for (const TypeInfo& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

bool word_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}
bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }

uint32_t round_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

constexpr const char* kSpecials[] = {
    "%tid",
    "%ntid",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%ctaid",
    "%nctaid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%is_explicit_cluster",
    "%clusterid",
    "%nclusterid",
    "%cluster_ctaid",
    "%cluster_nctaid",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
    "%clock_hi",
    "%clock64",
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%current_graph_exec",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
};

class Reader {
 public:
  Reader(std::string_view text, ModuleImpl* module) : text_(text), module_(*module) {}

  void run() {
    skip();
    while (position_ < text_.size()) top_level();
    if (module_.version == 0) fail("no .version directive: this is not a PTX module");
    if (module_.target.empty()) fail("no .target directive");
    for (const auto& [name, function] : module_.function_names) {
      if (function->entry && !function->defined) fail("kernel " + name + " is declared but has no body");
    }
  }

 private:
  struct Scope {
    uint32_t id;
    std::unordered_map<std::string, int32_t> regs;
    std::unordered_map<std::string, const Symbol*> symbols;
    std::unordered_map<std::string, uint32_t> labels;
    std::vector<std::string> label_order;
  };

  [[noreturn]] void fail(std::string message) const { throw SyntaxError{line_, std::move(message)}; }

  // The same for a problem with the token just read.
  [[noreturn]] void fail_here(std::string message) const {
    throw SyntaxError{token_line_, std::move(message)};
  }

  // ---- characters

  char peek(size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
  }

  void skip() {
    token_line_ = line_;
    while (position_ < text_.size()) {
      char c = text_[position_];
      if (c == '\n') {
        ++line_;
        ++position_;
      } else if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
        ++position_;
      } else if (c == '/' && peek(1) == '/') {
        while (position_ < text_.size() && text_[position_] != '\n') ++position_;
      } else if (c == '/' && peek(1) == '*') {
        size_t end = text_.find("*/", position_ + 2);
        if (end == std::string_view::npos) fail("comment without end");
        for (; position_ < end + 2; ++position_) line_ += text_[position_] == '\n';
      } else {
        break;
      }
    }
  }

  bool accept(char c) {
    if (peek() != c) return false;
    ++position_;
    skip();
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(std::string("expected '") + c + "', found " + found());
  }

  std::string found() const {
    if (position_ >= text_.size()) return "the end of the text";
    size_t end = position_;
    while (end < text_.size() && end < position_ + 24 && text_[end] != '\n') ++end;
    return "'" + std::string(text_.substr(position_, end - position_)) + "'";
  }

  std::string word() {
    if (!word_start(peek())) fail("expected a name, found " + found());
    size_t start = position_++;
    while (word_char(peek())) ++position_;
    std::string result(text_.substr(start, position_ - start));
    skip();
    return result;
  }

  // ".name" -> "name"; "" when the next character is no dot.
  std::string dot_word() {
    if (peek() != '.') return "";
    ++position_;
    size_t start = position_;
    while (word_char(peek()) || (peek() == ':' && peek(1) == ':')) position_ += peek() == ':' ? 2 : 1;
    std::string result(text_.substr(start, position_ - start));
    if (result.empty()) fail("expected a directive after '.'");
    skip();
    return result;
  }

  bool at_number() const {
    return std::isdigit(static_cast<unsigned char>(peek())) ||
           (peek() == '-' && std::isdigit(static_cast<unsigned char>(peek(1))));
  }

  // A literal: integer, 0f/0d hexadecimal float or decimal float.
  Operand number() {
    Operand operand;
    bool negative = false;
    while (peek() == '-' || peek() == '+') {
      negative ^= peek() == '-';
      ++position_;
      skip();
    }
    if (!std::isdigit(static_cast<unsigned char>(peek()))) fail("expected a number, found " + found());
    size_t start = position_;
    char kind = peek(1);
    if (peek() == '0' && (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D')) {
      bool single = kind == 'f' || kind == 'F';
      size_t digits = single ? 8 : 16;
      position_ += 2;
      for (size_t i = 0; i < digits; ++i) {
        if (!std::isxdigit(static_cast<unsigned char>(peek(i))))
          fail("a hexadecimal float needs " + std::to_string(digits) + " digits");
      }
      uint64_t bits = std::strtoull(std::string(text_.substr(position_, digits)).c_str(), nullptr, 16);
      position_ += digits;
      if (negative) bits ^= single ? uint64_t{1} << 31 : uint64_t{1} << 63;
      operand.kind = Operand::kFloat;
      operand.single = single;
      operand.value = static_cast<int64_t>(bits);
      skip();
      return operand;
    }
    bool is_float = false;
    bool hex = peek() == '0' && (kind == 'x' || kind == 'X');
    if (hex) position_ += 2;
    while (std::isalnum(static_cast<unsigned char>(peek())) || (!hex && peek() == '.') ||
           (!hex && (peek() == '-' || peek() == '+') &&
            (text_[position_ - 1] == 'e' || text_[position_ - 1] == 'E'))) {
      if (!hex && (peek() == '.' || ((peek() == 'e' || peek() == 'E') && kind != 'b'))) is_float = true;
      ++position_;
    }
    std::string digits(text_.substr(start, position_ - start));
    char* end = nullptr;
    if (is_float) {
      double value = std::strtod(digits.c_str(), &end);
      if (negative) value = -value;
      operand.kind = Operand::kFloat;
      operand.value = std::bit_cast<int64_t>(value);
    } else {
      uint64_t value = 0;
      if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'b' || digits[1] == 'B')) {
        value = std::strtoull(digits.c_str() + 2, &end, 2);
      } else {
        value = std::strtoull(digits.c_str(), &end, 0);
      }
      if (*end == 'U' || *end == 'u') ++end;
      operand.value = static_cast<int64_t>(negative ? 0 - value : value);
    }
    if (*end != '\0') fail("'" + digits + "' is no number");
    skip();
    return operand;
  }

  int64_t integer() {
    Operand operand = number();
    if (operand.kind != Operand::kInt) fail("expected an integer");
    return operand.value;
  }

  std::string quoted() {
    if (peek() != '"') fail("expected a string, found " + found());
    size_t end = text_.find('"', position_ + 1);
    if (end == std::string_view::npos) fail("string without end");
    std::string result(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    skip();
    return result;
  }

  void skip_braces() {
    expect('{');
    int depth = 1;
    while (depth) {
      if (position_ >= text_.size()) fail("'{' without '}'");
      if (peek() == '"') {
        quoted();
        continue;
      }
      depth += peek() == '{' ? 1 : peek() == '}' ? -1 : 0;
      ++position_;
      skip();
    }
  }

  void skip_to_semicolon() {
    while (peek() != ';') {
      if (position_ >= text_.size()) fail("statement without ';'");
      if (peek() == '"') {
        quoted();
        continue;
      }
      ++position_;
      skip();
    }
    expect(';');
  }

  // ---- module level

  void top_level() {
    if (peek() != '.') fail("expected a directive, found " + found());
    size_t start = position_;
    uint32_t start_line = line_;
    std::string directive = dot_word();
    if (directive == "version") {
      int64_t major = 0, minor = 0;
      size_t begin = position_;
      while (std::isdigit(static_cast<unsigned char>(peek())) || peek() == '.') ++position_;
      std::string text(text_.substr(begin, position_ - begin));
      if (std::sscanf(text.c_str(), "%ld.%ld", &major, &minor) != 2)
        fail(".version needs major.minor, found '" + text + "'");
      if (major < 6 || major > 9) {
        fail_here("PTX version " + text + " is not supported: the emulator reads 6.0 to 9.x");
      }
      module_.version = static_cast<uint32_t>(major * 10 + minor);
      skip();
    } else if (directive == "target") {
      std::string target = word();
      unsigned sm = 0;
      char suffix = 0, rest = 0;
      int n = std::sscanf(target.c_str(), "sm_%u%c%c", &sm, &suffix, &rest);
      if (n < 1 || n > 2 || (n == 2 && suffix != 'a' && suffix != 'f'))
        fail_here("unknown target '" + target + "'");
      if (sm < 80) fail_here("target " + target + " is not supported: the emulator executes sm_80 and later");
      if (suffix == 'f' && sm < 100)
        fail_here("unknown target '" + target + "': the suffix f starts with sm_100f");
      if (suffix == 'a' && sm < 90)
        fail_here("unknown target '" + target + "': the suffix a starts with sm_90a");
      module_.target = target;
      module_.sm = sm;
      module_.suffix = n == 2 ? suffix : 0;
      while (accept(',')) word();
    } else if (directive == "address_size") {
      if (integer() != 64) fail_here(".address_size must be 64");
    } else if (directive == "file") {
      uint32_t index = static_cast<uint32_t>(integer());
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
      (void)start;
      line_ = start_line;
      fail_here("unknown directive ." + directive);
    }
  }

  struct Declarator {
    std::string name;
    uint32_t alignment = 0;
    const TypeInfo* type = nullptr;
    uint32_t vector = 1;
    uint64_t count = 1;
    bool is_array = false;
    bool open_array = false;
    bool pointer = false;
  };

  // After the state space: [.align n] [.v2|.v4] .type [.ptr ...] name[dims]
  Declarator declarator_head() {
    Declarator d;
    for (;;) {
      std::string part = dot_word();
      if (part.empty()) break;
      if (part == "align") {
        d.alignment = static_cast<uint32_t>(integer());
        if (d.alignment == 0 || (d.alignment & (d.alignment - 1))) fail(".align needs a power of two");
      } else if (part == "v2" || part == "v4") {
        d.vector = part == "v2" ? 2 : 4;
      } else if (part == "ptr") {
        d.pointer = true;
        for (;;) {
          std::string more = dot_word();
          if (more.empty()) break;
          if (more == "align") {
            integer();
          } else if (more != "global" && more != "shared" && more != "const" && more != "local") {
            fail("unknown pointer attribute ." + more);
          }
        }
        break;
      } else if (part == "attribute") {
        expect('(');
        while (peek() != ')') {
          ++position_;
          skip();
        }
        expect(')');
      } else if (const TypeInfo* type = find_type(part)) {
        d.type = type;
      } else {
        fail_here("unknown type ." + part);
      }
    }
    if (!d.type) fail("declaration without a type");
    return d;
  }

  void declarator_name(Declarator* d) {
    d->name = word();
    while (accept('[')) {
      d->is_array = true;
      if (accept(']')) {
        d->open_array = true;
        continue;
      }
      d->count *= static_cast<uint64_t>(integer());
      expect(']');
    }
  }

  uint64_t bytes_of(const Declarator& d) const { return d.type->bytes * uint64_t{d.vector} * d.count; }
  uint32_t alignment_of(const Declarator& d) const {
    return d.alignment ? d.alignment : d.type->bytes * d.vector;
  }

  // .global, .const, .shared at module level (function == nullptr), .shared and .local inside.
  void variable(const std::string& space, Function* function) {
    Declarator d = declarator_head();
    do {
      d.count = 1;
      d.is_array = d.open_array = false;
      declarator_name(&d);
      auto symbol = std::make_unique<Symbol>();
      symbol->name = d.name;
      symbol->alignment = alignment_of(d);
      symbol->bytes = d.open_array ? 0 : bytes_of(d);
      if (space == "shared") {
        symbol->space = Space::kShared;
        if (linkage_ == "extern") {
          symbol->dynamic = true;
        } else {
          uint32_t& used = function ? function->shared_bytes : module_.shared_bytes;
          used = round_up(used, symbol->alignment);
          symbol->offset = used;
          used += static_cast<uint32_t>(symbol->bytes);
        }
      } else if (space == "local") {
        symbol->space = Space::kLocal;
        function->local_bytes = round_up(function->local_bytes, symbol->alignment);
        symbol->offset = function->local_bytes;
        function->local_bytes += static_cast<uint32_t>(symbol->bytes);
      } else {
        GlobalInfo info;
        info.name = d.name;
        info.alignment = symbol->alignment;
        info.constant = space == "const";
        std::vector<uint8_t> initial;
        uint32_t index = static_cast<uint32_t>(module_.globals.size());
        if (accept('=')) initialiser(d, index, &initial);
        if (d.open_array) symbol->bytes = initial.size();
        initial.resize(symbol->bytes);
        info.bytes = static_cast<uint32_t>(symbol->bytes);
        symbol->space = info.constant ? Space::kConst : Space::kGlobal;
        if (info.constant) {
          uint32_t at =
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

  void initialiser(const Declarator& d, uint32_t global, std::vector<uint8_t>* bytes) {
    if (accept('{')) {
      while (!accept('}')) {
        initialiser(d, global, bytes);
        if (!accept(',') && peek() != '}') fail("expected ',' or '}' in an initialiser");
      }
      return;
    }
    uint32_t size = d.type->bytes;
    uint64_t value = 0;
    if (word_start(peek())) {
      std::string name = word();
      int64_t addend = 0;
      bool generic = false;
      if (name == "generic") {
        generic = true;
        expect('(');
        name = word();
        expect(')');
      }
      if (peek() == '+') {
        ++position_;
        skip();
        addend = integer();
      }
      (void)generic;
      auto symbol = module_.symbol_names.find(name);
      if (symbol == module_.symbol_names.end())
        fail("initialiser names '" + name + "', which is not declared");
      module_.relocations.push_back({global, static_cast<uint32_t>(bytes->size()), symbol->second, addend});
    } else {
      Operand operand = number();
      value = static_cast<uint64_t>(operand.value);
      if (operand.kind == Operand::kFloat && size == 4 && !operand.single) {
        value = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.value)));
      }
    }
    for (uint32_t i = 0; i < size; ++i)
      bytes->push_back(static_cast<uint8_t>(value >> (8 * std::min(i, 7u))));
  }

  // ---- functions

  void parameter_list(Function* function, std::vector<const Symbol*>* out) {
    expect('(');
    while (!accept(')')) {
      std::string space = dot_word();
      if (space != "param") fail("expected .param, found ." + space);
      Declarator d = declarator_head();
      declarator_name(&d);
      auto symbol = std::make_unique<Symbol>();
      symbol->name = d.name;
      symbol->space = Space::kParam;
      symbol->alignment = alignment_of(d);
      symbol->bytes = bytes_of(d);
      function->param_bytes = round_up(function->param_bytes, symbol->alignment);
      symbol->offset = function->param_bytes;
      function->param_bytes += static_cast<uint32_t>(symbol->bytes);
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

  Dim3 dims() {
    Dim3 d;
    d.x = static_cast<uint32_t>(integer());
    if (accept(',')) d.y = static_cast<uint32_t>(integer());
    if (accept(',')) d.z = static_cast<uint32_t>(integer());
    return d;
  }

  void function(bool entry) {
    auto owned = std::make_unique<Function>();
    Function* f = owned.get();
    f->entry = entry;
    f->line = line_;
    scopes_.clear();
    scope_count_ = 0;
    scopes_.push_back({scope_count_++, {}, {}, {}, {}});
    if (peek() == '.') {  // .attribute
      std::string part = dot_word();
      if (part != "attribute") fail("unknown function attribute ." + part);
      skip_parens();
    }
    if (!entry && peek() == '(') parameter_list(f, &f->returns);
    f->name = word();
    f->info.name = f->name;
    if (peek() == '(') parameter_list(f, &f->params);
    for (;;) {
      std::string part = dot_word();
      if (part.empty()) break;
      if (part == "reqntid") {
        f->info.reqntid = dims();
      } else if (part == "maxntid") {
        f->info.maxntid = dims();
      } else if (part == "minnctapersm") {
        f->info.min_ctas_per_sm = static_cast<uint32_t>(integer());
      } else if (part == "maxnctapersm") {
        integer();
      } else if (part == "maxnreg") {
        f->info.max_registers = static_cast<uint32_t>(integer());
      } else if (part == "reqnctapercluster") {
        f->info.cluster = dims();
      } else if (part == "explicitcluster") {
        f->info.explicit_cluster = true;
      } else if (part == "maxclusterrank") {
        f->info.max_cluster_rank = static_cast<uint32_t>(integer());
      } else if (part == "noreturn" || part == "blocksareclusters" || part == "pragma") {
        if (part == "pragma") skip_to_semicolon();
      } else if (part == "abi_preserve" || part == "abi_preserve_control") {
        integer();
      } else {
        fail_here("unknown performance directive ." + part);
      }
    }
    auto& by_name = module_.function_names[f->name];
    if (accept(';')) {
      if (!by_name) {
        by_name = f;
        module_.functions.push_back(std::move(owned));
      }
      return;
    }
    if (by_name && by_name->defined) fail("function " + f->name + " is defined twice");
    by_name = f;
    module_.functions.push_back(std::move(owned));
    f->defined = true;
    formal_param_bytes_ = f->param_bytes;
    expect('{');
    body(f);
    f->info.param_bytes = formal_param_bytes_;
    f->info.local_bytes = f->local_bytes;
  }

  void skip_parens() {
    expect('(');
    int depth = 1;
    while (depth) {
      if (position_ >= text_.size()) fail("'(' without ')'");
      depth += peek() == '(' ? 1 : peek() == ')' ? -1 : 0;
      ++position_;
      skip();
    }
  }

  // A label's name with the scope that declares it.
  static std::string scoped(const std::string& name, uint32_t scope) {
    return name + "@" + std::to_string(scope);
  }

  void close_scope(Function* f) {
    Scope& scope = scopes_.back();
    // References made in this scope or inside it: resolved now if the label stands here, otherwise
    // handed to the scope around it.
    for (size_t i = 0; i < pending_.size();) {
      Pending& reference = pending_[i];
      if (reference.depth == scopes_.size()) {
        if (scope.labels.count(reference.name)) {
          resolve(f, reference, scope.id);
          pending_[i] = pending_.back();
          pending_.pop_back();
          continue;
        }
        reference.depth -= 1;
      }
      ++i;
    }
    scopes_.pop_back();
  }

  struct Pending {
    std::string name;
    size_t depth;
    size_t statement;  // or npos: a branch target list
    size_t operand;
    std::string list;
    uint32_t line;
  };

  void resolve(Function* f, const Pending& reference, uint32_t scope) {
    std::string name = scoped(reference.name, scope);
    if (reference.statement == std::string::npos) {
      f->branch_targets[reference.list][reference.operand] = name;
    } else {
      f->statements[reference.statement].operands[reference.operand].text = name;
    }
  }

  void body(Function* f) {
    uint32_t loc = 0;
    pending_.clear();
    for (;;) {
      if (position_ >= text_.size()) fail("function " + f->name + " has no closing '}'");
      if (accept('{')) {
        scopes_.push_back({scope_count_++, {}, {}, {}, {}});
        continue;
      }
      if (accept('}')) {
        bool last = scopes_.size() == 1;
        close_scope(f);
        if (last) break;
        continue;
      }
      if (accept(';')) continue;
      if (peek() == '.') {
        std::string directive = dot_word();
        if (directive == "reg") {
          register_declaration(f);
        } else if (directive == "shared" || directive == "local") {
          variable(directive, f);
        } else if (directive == "param") {
          param_variable(f);
        } else if (directive == "loc") {
          Loc where;
          where.file = static_cast<uint32_t>(integer());
          where.line = static_cast<uint32_t>(integer());
          if (at_number()) integer();
          while (accept(',')) {
            if (word_start(peek())) {
              std::string key = word();
              if (key == "function_name") {
                word();
                if (accept('+')) integer();
              } else if (key == "inlined_at") {
                integer();
                integer();
                integer();
              }
            } else {
              integer();
            }
          }
          f->locs.push_back(where);
          loc = static_cast<uint32_t>(f->locs.size() - 1);
        } else if (directive == "pragma") {
          skip_to_semicolon();
        } else if (directive == "global" || directive == "const") {
          variable(directive, nullptr);
        } else {
          fail_here("unknown directive ." + directive + " in a function");
        }
        continue;
      }
      instruction_or_label(f, loc);
    }
    for (const Pending& reference : pending_) {
      line_ = reference.line;
      if (reference.statement != std::string::npos) {
        // Not a label: a function name (call) keeps its text. Everything else fails in decode.
        continue;
      }
      fail("label " + reference.name + " is not defined");
    }
  }

  void register_declaration(Function* f) {
    std::string type_name = dot_word();
    if (type_name == "v2" || type_name == "v4") fail("vector registers are not supported");
    const TypeInfo* type = find_type(type_name);
    if (!type) fail_here("unknown register type ." + type_name);
    do {
      std::string name = word();
      if (accept('<')) {
        int64_t count = integer();
        expect('>');
        for (int64_t i = 0; i < count; ++i) declare_register(f, name + std::to_string(i), type->cls);
      } else {
        declare_register(f, name, type->cls);
      }
    } while (accept(','));
    expect(';');
  }

  void declare_register(Function* f, std::string name, RegClass cls) {
    if (!scopes_.back().regs.emplace(name, static_cast<int32_t>(f->regs.size())).second) {
      fail_here("register " + name + " is declared twice");
    }
    f->regs.push_back({std::move(name), cls});
  }

  void param_variable(Function* f) {
    Declarator d = declarator_head();
    declarator_name(&d);
    expect(';');
    auto symbol = std::make_unique<Symbol>();
    symbol->name = d.name;
    symbol->space = Space::kParam;
    symbol->alignment = std::max(alignment_of(d), 8u);
    symbol->bytes = bytes_of(d);
    f->param_bytes = round_up(f->param_bytes, symbol->alignment);
    symbol->offset = f->param_bytes;
    f->param_bytes += round_up(static_cast<uint32_t>(symbol->bytes), 8);
    scopes_.back().symbols[d.name] = symbol.get();
    f->symbols.push_back(std::move(symbol));
  }

  int32_t find_register(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      auto found = scopes_[i].regs.find(name);
      if (found != scopes_[i].regs.end()) return found->second;
    }
    return -1;
  }

  const Symbol* find_symbol(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      auto found = scopes_[i].symbols.find(name);
      if (found != scopes_[i].symbols.end()) return found->second;
    }
    auto found = module_.symbol_names.find(name);
    return found == module_.symbol_names.end() ? nullptr : found->second;
  }

  // A register, special register, variable, label or function name.
  Operand name_operand() {
    Operand operand;
    std::string name = word();
    if (name == "_") {
      operand.kind = Operand::kSink;
      return operand;
    }
    int32_t reg = find_register(name);
    if (reg >= 0) {
      operand.kind = Operand::kReg;
      operand.reg = reg;
      if (peek() == '.') fail("vector register elements (" + name + ".x) are not supported");
      return operand;
    }
    if (name[0] == '%') {
      std::string text = name;
      bool known = std::find_if(std::begin(kSpecials), std::end(kSpecials),
                                [&](const char* special) { return name == special; }) != std::end(kSpecials);
      if (name.rfind("%envreg", 0) == 0) known = true;
      if (!known) fail_here("register " + name + " is not declared");
      if (peek() == '.') text += "." + dot_word();
      operand.kind = Operand::kSpecial;
      operand.text = text;
      return operand;
    }
    if (name == "WARP_SZ") {
      operand.value = 32;
      return operand;
    }
    if (const Symbol* symbol = find_symbol(name)) {
      operand.kind = Operand::kSymbol;
      operand.symbol = symbol;
      operand.text = name;
      if (peek() == '+' || (peek() == '-' && std::isdigit(static_cast<unsigned char>(peek(1))))) {
        bool minus = peek() == '-';
        ++position_;
        skip();
        int64_t value = integer();
        operand.value = minus ? -value : value;
      }
      return operand;
    }
    operand.kind = Operand::kName;
    operand.text = name;
    return operand;
  }

  Operand operand() {
    Operand result;
    if (peek() == '{' || peek() == '(') {
      char close = peek() == '{' ? '}' : ')';
      result.kind = peek() == '{' ? Operand::kVector : Operand::kTuple;
      ++position_;
      skip();
      while (!accept(close)) {
        result.parts.push_back(operand());
        if (!accept(',') && peek() != close)
          fail(std::string("expected ',' or '") + close + "', found " + found());
      }
      return result;
    }
    if (accept('[')) {
      result.kind = Operand::kAddress;
      if (at_number()) {
        result.value = integer();
      } else {
        Operand base = name_operand();
        result.value = base.kind == Operand::kSymbol ? base.value : 0;
        base.value = 0;
        result.parts.push_back(std::move(base));
        if (peek() == '+' || peek() == '-') {
          bool minus = peek() == '-';
          ++position_;
          skip();
          int64_t value = integer();
          result.value += minus ? -value : value;
        }
      }
      while (accept(',')) result.parts.push_back(operand());
      expect(']');
      return result;
    }
    if (accept('!')) {
      result = name_operand();
      if (result.kind != Operand::kReg) fail("'!' needs a predicate register");
      result.negated = true;
    } else if (word_start(peek())) {
      result = name_operand();
    } else if (at_number() || peek() == '-' || peek() == '+') {
      result = number();
    } else {
      fail("expected an operand, found " + found());
    }
    if (accept('|')) {
      Operand pair;
      pair.kind = Operand::kPair;
      pair.parts.push_back(std::move(result));
      pair.parts.push_back(name_operand());
      return pair;
    }
    return result;
  }

  void instruction_or_label(Function* f, uint32_t loc) {
    Statement statement;
    statement.line = line_;
    statement.loc = loc;
    if (accept('@')) {
      statement.guard_negated = accept('!');
      std::string name = word();
      statement.guard = find_register(name);
      if (statement.guard < 0) fail_here("guard " + name + " is not declared");
    }
    if (!word_start(peek())) fail("expected an instruction, found " + found());
    size_t start = position_;
    while (word_char(peek()) || peek() == '$' || peek() == '%') ++position_;
    std::string first(text_.substr(start, position_ - start));
    if (peek() == ':' && peek(1) != ':') {  // a label
      ++position_;
      skip();
      Scope& scope = scopes_.back();
      if (peek() == '.') {
        size_t save = position_;
        uint32_t save_line = line_;
        std::string directive = dot_word();
        if (directive == "branchtargets") {
          std::vector<std::string> names;
          do {
            names.push_back(word());
          } while (accept(','));
          expect(';');
          for (size_t i = 0; i < names.size(); ++i) {
            pending_.push_back({names[i], scopes_.size(), std::string::npos, i, first, statement.line});
          }
          f->branch_targets[first] = names;
          return;
        }
        if (directive == "callprototype") fail("indirect calls are not supported");
        position_ = save;
        line_ = save_line;
      }
      if (!scope.labels.emplace(first, 0).second) fail_here("label " + first + " is defined twice");
      f->labels[scoped(first, scope.id)] = static_cast<uint32_t>(f->statements.size());
      return;
    }
    while (word_char(peek()) || peek() == '.' || peek() == ':') ++position_;
    statement.op_text = std::string(text_.substr(start, position_ - start));
    skip();
    size_t begin = 0;
    while (begin <= statement.op_text.size()) {
      size_t end = statement.op_text.find('.', begin);
      if (end == std::string::npos) end = statement.op_text.size();
      statement.op.push_back(statement.op_text.substr(begin, end - begin));
      begin = end + 1;
    }
    if (peek() != ';') {
      do {
        statement.operands.push_back(operand());
      } while (accept(','));
    }
    expect(';');
    for (size_t i = 0; i < statement.operands.size(); ++i) {
      if (statement.operands[i].kind == Operand::kName) {
        pending_.push_back(
            {statement.operands[i].text, scopes_.size(), f->statements.size(), i, "", statement.line});
      }
    }
    f->statements.push_back(std::move(statement));
  }

  std::string_view text_;
  ModuleImpl& module_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  uint32_t token_line_ = 1;  // of the last token read
  std::string linkage_;
  std::vector<Scope> scopes_;
  std::vector<Pending> pending_;
  uint32_t scope_count_ = 0;
  uint32_t formal_param_bytes_ = 0;
};

}  // namespace

Status read_ptx(std::string_view text, std::string_view name, ModuleImpl* module) {
  module->name = std::string(name);
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = std::min(text.find('\n', begin), text.size());
    module->lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  try {
    Reader(text, module).run();
  } catch (const SyntaxError& error) {
    return Status::invalid(module->name + ":" + std::to_string(error.line) + ": " + error.message);
  }
  // Shared variables get their final place: module-level ones first, then those of each function
  // (all functions, so that a call finds its callee's variables), then the dynamic array.
  uint32_t at = kSharedReserved + module->shared_bytes;
  for (auto& symbol : module->symbols) {
    if (symbol->space == Space::kShared && !symbol->dynamic) symbol->offset += kSharedReserved;
  }
  uint32_t dynamic_alignment = 16;
  for (auto& symbol : module->symbols) {
    if (symbol->dynamic) dynamic_alignment = std::max(dynamic_alignment, symbol->alignment);
  }
  uint32_t callee_shared = 0;
  for (auto& function : module->functions) {
    if (!function->entry) callee_shared += round_up(function->shared_bytes, 16);
  }
  uint32_t callee_at = round_up(at, 128);
  for (auto& function : module->functions) {
    uint32_t base;
    if (function->entry) {
      base = round_up(callee_shared ? callee_at + callee_shared : at, 128);
    } else {
      base = callee_at;
    }
    for (auto& symbol : function->symbols) {
      if (symbol->space == Space::kShared && !symbol->dynamic) symbol->offset += base;
    }
    if (function->entry) {
      uint32_t end = function->shared_bytes || callee_shared ? base + function->shared_bytes : at;
      function->info.static_shared_bytes = end - kSharedReserved;
    } else {
      callee_at += round_up(function->shared_bytes, 16);
    }
  }
  for (auto& symbol : module->symbols) {
    if (symbol->dynamic) symbol->alignment = dynamic_alignment;
  }
  return Status();
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Reads a PTX text: characters and literals (lexer.cc), the module's directives and variables
// (module_level.cc), functions and their scopes (function.cc), instructions (instruction.cc). The text may be
// anything: what is wrong with it is a SyntaxError, whatever it asks for is bounded (Limits).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/emulator/engine/ptx.h"

namespace mla::emu {

struct SyntaxError {
  uint32_t line;
  std::string message;
};

struct TypeInfo {
  const char* name;
  uint32_t bytes;
  RegClass cls;
};

const TypeInfo* find_type(std::string_view name);

// What a module may ask for. Beyond what hardware has, or what anyone has seen in a kernel.
namespace limits {
inline constexpr uint32_t kNesting = 64;                       // of operands and initialisers
inline constexpr uint32_t kScopes = 256;                       // of { } in a function
inline constexpr int64_t kRegisters = 1 << 18;                 // of a function
inline constexpr int64_t kModuleRegisters = 1 << 22;           // of all functions
inline constexpr uint64_t kSharedBytes = 1 << 20;              // of a module or function
inline constexpr uint64_t kLocalBytes = 512 << 10;             // of a function, for each thread
inline constexpr uint64_t kParamBytes = 1 << 16;               // of a function
inline constexpr uint64_t kVariableBytes = uint64_t{1} << 28;  // .global and .const, of a module
inline constexpr int64_t kAlignment = 1 << 15;
}  // namespace limits

bool word_start(char c);
bool word_char(char c);
inline uint32_t round_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

// Text as it may stand in a message: printable, and not too long.
std::string shown(std::string_view text, size_t most = 24);

class Reader {
 public:
  Reader(std::string_view text, ModuleImpl* module) : text_(text), module_(*module) {}

  void run();

 private:
  // A reference to a label that may be defined further on, or a scope further out.
  struct Pending {
    std::string name;
    size_t statement;  // or npos: a branch target list
    size_t operand;
    std::string list;
    uint32_t line;
  };

  // Registers name0 ... name<count - 1>.
  struct RegRange {
    int32_t first;
    int64_t count;
  };

  struct Scope {
    uint32_t id;
    std::unordered_map<std::string, int32_t> regs;
    std::unordered_map<std::string, RegRange> ranges;
    std::unordered_map<std::string, const Symbol*> symbols;
    std::unordered_map<std::string, uint32_t> labels;
    std::vector<Pending> pending;
  };

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

  [[noreturn]] void fail(std::string message) const;
  // The same for a problem with the token just read.
  [[noreturn]] void fail_here(std::string message) const;

  // ---- lexer.cc
  char peek(size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
  }
  void skip();
  bool accept(char c);
  void expect(char c);
  std::string found() const;
  std::string word();
  // ".name" -> "name"; "" when the next character is no dot.
  std::string dot_word();
  bool at_number() const;
  // A literal: integer, 0f/0d hexadecimal float or decimal float.
  Operand number();
  int64_t integer();
  // An integer from `least` to `most`; `what` stands in the message.
  int64_t integer_in(const char* what, int64_t least, int64_t most);
  std::string quoted();
  void skip_braces();
  void skip_to_semicolon();
  // Skips "( ... )", parentheses inside included.
  void skip_parens();

  // ---- module_level.cc
  void top_level();
  void version();
  void target();
  // After the state space: [.align n] [.v2|.v4] .type [.ptr ...] name[dims]
  Declarator declarator_head();
  void declarator_name(Declarator* d);
  // Of the declared variable; fails above `most`.
  uint64_t bytes_of(const Declarator& d, uint64_t most) const;
  uint32_t alignment_of(const Declarator& d) const;
  // Makes room for a variable behind `used` bytes and returns its offset; fails above `most`.
  uint64_t reserve(uint32_t* used, const Symbol& symbol, uint64_t most) const;
  // .global, .const, .shared at module level (function == nullptr), .shared and .local inside.
  void variable(const std::string& space, Function* function);
  void initialised_variable(const Declarator& d, bool constant, Symbol* symbol);
  void initialiser(const Declarator& d, uint32_t global, std::vector<uint8_t>* bytes, uint32_t depth);

  // ---- function.cc
  void parameter_list(Function* function, std::vector<const Symbol*>* out);
  Dim3 dims();
  void function(bool entry);
  void performance_directives(Function* f);
  void open_scope();
  void close_scope(Function* f);
  void resolve(Function* f, const Pending& reference, uint32_t scope);
  void body(Function* f);
  Loc location();
  void register_declaration(Function* f);
  void declare_register(Function* f, std::string name, RegClass cls);
  void declare_range(Function* f, const std::string& prefix, int64_t count, RegClass cls);
  void param_variable(Function* f);
  int32_t find_register(const std::string& name) const;
  const Symbol* find_symbol(const std::string& name) const;

  // ---- instruction.cc
  // A register, special register, variable, label or function name.
  Operand name_operand();
  Operand operand(uint32_t depth = 0);
  Operand address_operand(uint32_t depth);
  void instruction_or_label(Function* f, uint32_t loc);
  // True when "name:" opened a list of branch targets.
  bool branch_targets(Function* f, const std::string& name, uint32_t line);

  std::string_view text_;
  ModuleImpl& module_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  uint32_t token_line_ = 1;  // of the last token read
  std::string linkage_;
  std::vector<Scope> scopes_;
  uint32_t scope_count_ = 0;
  uint32_t formal_param_bytes_ = 0;
  uint64_t variable_bytes_ = 0;
};

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// A PTX module as read: functions with flat statement lists whose registers, variables and labels
// are resolved. What an instruction means is decided in decode.cc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/emulator/engine/engine.h"

namespace mla::emu {

enum class RegClass : uint8_t { kPred, k16, k32, k64, k128, k8 };

struct RegDecl {
  std::string name;
  RegClass cls;
};

enum class Space : uint8_t { kNone, kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

// A variable of any state space.
struct Symbol {
  std::string name;
  Space space = Space::kNone;
  uint64_t offset = 0;  // in its space; for .global an index into ModuleImpl::globals
  uint64_t bytes = 0;
  uint32_t alignment = 1;
  bool dynamic = false;  // .extern .shared array
};

struct Operand {
  enum Kind : uint8_t {
    kReg,      // reg, maybe negated ("!%p")
    kInt,      // value
    kFloat,    // value holds the bits of a double; single: of a float
    kSpecial,  // text, for instance "%tid.x"
    kSymbol,   // symbol + value
    kName,     // a label or function: text
    kVector,   // { parts }
    kAddress,  // [parts[0] + value {, coordinates}]; parts[0] may be absent
    kTuple,    // ( parts )
    kPair,     // parts[0] | parts[1]
    kSink,     // _
  };
  Kind kind = kInt;
  bool negated = false;
  bool single = false;
  int32_t reg = -1;
  int64_t value = 0;
  const Symbol* symbol = nullptr;
  std::string text;
  std::vector<Operand> parts;
};

struct Loc {
  uint32_t file = 0, line = 0;
};

struct Statement {
  int32_t guard = -1;  // predicate register
  bool guard_negated = false;
  std::vector<std::string> op;  // split at the dots, "::" kept
  std::string op_text;          // as written
  std::vector<Operand> operands;
  uint32_t line = 0;
  uint32_t loc = 0;  // index into Function::locs
};

struct Function {
  std::string name;
  bool entry = false;
  bool defined = false;
  uint32_t line = 0;
  KernelInfo info;
  std::vector<RegDecl> regs;
  std::vector<Statement> statements;
  std::unordered_map<std::string, uint32_t> labels;                          // scoped name -> statement index
  std::unordered_map<std::string, std::vector<std::string>> branch_targets;  // label -> labels
  std::vector<std::unique_ptr<Symbol>> symbols;
  std::vector<const Symbol*> params;   // formal parameters, in order
  std::vector<const Symbol*> returns;  // of a .func
  std::vector<Loc> locs{{}};
  uint32_t param_bytes = 0;  // entry: the parameter buffer. .func: its formals, and call arguments
  uint32_t local_bytes = 0;
  uint32_t shared_bytes = 0;  // of variables declared inside
};

struct Program;  // decoded form, decode.h

struct ModuleImpl {
  std::string name;
  std::string target;
  uint32_t sm = 0;
  char suffix = 0;
  uint32_t version = 0;
  std::vector<std::string> lines;  // the text, for messages
  std::map<uint32_t, std::string> files;
  std::vector<GlobalInfo> globals;  // .global and .const
  std::vector<std::unique_ptr<Symbol>> symbols;
  std::unordered_map<std::string, const Symbol*> symbol_names;
  std::vector<std::unique_ptr<Function>> functions;
  std::unordered_map<std::string, Function*> function_names;
  uint32_t shared_bytes = 0;  // of module-level .shared variables
  int64_t registers = 0;      // declared in all functions
  std::vector<uint8_t> constants;
  // (offset in globals[i].initial, symbol) of initialisers that are addresses
  struct Relocation {
    uint32_t global;
    uint32_t offset;
    const Symbol* symbol;
    int64_t addend;
  };
  std::vector<Relocation> relocations;
  std::map<std::string, std::shared_ptr<Program>> programs;  // by kernel
};

Status read_ptx(std::string_view text, std::string_view name, ModuleImpl* module);

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// A decoded kernel: instructions with a handler each, operands as places, and the address windows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulator/engine/ptx.h"

namespace mla::emu {

struct Machine;
struct Instr;
struct Warp;
struct Cta;
struct Cluster;

enum class Next : uint8_t {
  kNext,     // pc + 1
  kJump,     // the handler set the pc
  kBlocked,  // execute the same instruction again once woken
  kYield,    // pc + 1, and let others run
  kEnd,      // the group has no lanes left, or waits at its reconvergence point
  kFault,
};

// Where an instruction goes on.
enum class Flow : uint8_t { kNext, kBranch, kBranchTable, kCall, kReturn, kEnd };

using Handler = Next (*)(Machine&, const Instr&, uint32_t mask);

// Where an operand stands: `offset` bytes into the warp's registers (constant == 0) or into the
// program's constants. 32 lanes of 4 or 8 bytes; a predicate is one 32-bit mask.
struct Opd {
  uint32_t offset = 0;
  uint8_t constant = 0;
  uint8_t negated = 0;  // predicates
  uint8_t present = 0;
};

inline constexpr uint32_t kNowhere = ~uint32_t{0};

struct Instr {
  Handler fn = nullptr;
  Opd o[5];
  const Opd* x = nullptr;  // vector operands
  Opd guard;               // present: executed by lanes whose predicate holds
  uint32_t target = 0;     // bra, call
  uint32_t reconverge = kNowhere;
  int64_t imm = 0;     // address offset
  uint32_t a[4] = {};  // what the handler wants
  const void* p = nullptr;
  uint32_t line = 0;
  uint32_t function = 0;
  uint32_t loc = 0;
  uint32_t opcode = 0;  // index into Program::opcodes
  uint32_t nx = 0;
  Flow flow = Flow::kNext;
};

struct Program {
  const ModuleImpl* module = nullptr;
  const Function* kernel = nullptr;
  std::vector<Instr> code;
  std::vector<std::unique_ptr<std::vector<Opd>>> pools;
  std::vector<std::unique_ptr<std::vector<uint32_t>>> tables;
  std::vector<std::shared_ptr<void>> call_tables;
  std::vector<const Function*> functions;
  std::vector<std::string> opcodes;
  std::vector<uint8_t> constants;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constant_places;  // (value, bytes) -> offset
  struct GlobalPatch {
    uint32_t offset;  // of the 32 lanes in constants
    uint32_t global;
    int64_t addend;
    bool wide;
  };
  std::vector<GlobalPatch> patches;
  // Special registers with a place in the register file.
  std::map<std::string, uint32_t> specials;
  uint32_t register_bytes = 0;
  uint32_t local_bytes = 0;
  uint32_t frame_bytes = 0;  // .param space of calls, per lane
  uint32_t static_shared = 0;
  uint32_t dynamic_base = 0;  // address of the dynamic array
  std::vector<std::string> unsupported;

  uint32_t function_index(const Function* f) const;  // functions.size() if it is not part of it
  uint32_t frame_base(const Function* f) const;      // of its .param space in a lane's frame
};

// Decodes a kernel and the functions that it calls. Problems go to Program::unsupported.
std::shared_ptr<Program> decode(const ModuleImpl& module, const Function& kernel);

// ---------------------------------------------------------------- address windows

// Generic addresses: 32 bits inside each window.
inline constexpr uint64_t kSharedWindow = uint64_t{0x1000} << 32;
inline constexpr uint64_t kLocalWindow = uint64_t{0x1100} << 32;
inline constexpr uint64_t kParamWindow = uint64_t{0x1200} << 32;
inline constexpr uint64_t kConstWindow = uint64_t{0x1300} << 32;
// shared::cluster addresses: (rank + 1) << 24 | offset; rank 0 bits: the own CTA.
inline constexpr uint32_t kRankShift = 24;
inline constexpr uint32_t kOffsetMask = (1u << kRankShift) - 1;
inline constexpr uint32_t kSharedBegin = 1024;  // hardware keeps the first KiB

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// From decoded statements to code: a draft of one function, its control flow graph, the points where
// branches meet again, and the places of its registers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

// What a function decodes to before its registers have places.
struct Draft {
  const Function* function = nullptr;
  std::vector<Instr> code;
  std::vector<std::vector<uint32_t>> defs, uses;
  std::vector<uint32_t> at;                           // statement -> index in code
  std::vector<std::string> target_label;              // of code[i], "" if none
  std::vector<std::vector<std::string>> more_labels;  // brx
  std::vector<std::vector<uint32_t>> more_targets;    // the same as indices
  uint32_t frame_base = 0;
};

// Basic blocks; the exit is the block behind the last one.
struct FlowGraph {
  std::vector<uint32_t> starts;  // index in code
  std::vector<std::vector<uint32_t>> next, previous;
  uint32_t code_size = 0;

  explicit FlowGraph(const Draft& d);
  size_t blocks() const { return starts.size(); }
  uint32_t exit() const { return static_cast<uint32_t>(starts.size()); }
  uint32_t end_of(size_t block) const { return block + 1 < starts.size() ? starts[block + 1] : code_size; }
};

// Sets Instr::reconverge of the branches: the start of the immediate post-dominator.
void find_reconvergence(const FlowGraph& graph, Draft* d);

// Places the virtual registers in the register file from *top on, those that are not alive at the same
// time in the same place, and settles every operand. False: the function is too large for it.
bool place_registers(const FlowGraph& graph, Draft* d, uint32_t* top);

}  // namespace mla::emu

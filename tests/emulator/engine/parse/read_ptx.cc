// SPDX-License-Identifier: Apache-2.0
//
// The whole of reading a text, and where its shared variables lie.
#include <algorithm>

#include "tests/emulator/engine/parse/reader.h"

namespace mla::emu {

namespace {

// First shared-memory address that a kernel may use: hardware keeps the first KiB for itself.
constexpr uint32_t kSharedReserved = 1024;

// Shared variables get their final place: module-level ones first, then those of each function (all
// functions, so that a call finds its callee's variables), then the dynamic array.
Status place_shared(ModuleImpl* module) {
  uint32_t at = kSharedReserved + module->shared_bytes;
  for (auto& symbol : module->symbols) {
    if (symbol->space == Space::kShared && !symbol->dynamic) symbol->offset += kSharedReserved;
  }
  uint32_t dynamic_alignment = 16;
  for (auto& symbol : module->symbols) {
    if (symbol->dynamic) dynamic_alignment = std::max(dynamic_alignment, symbol->alignment);
  }
  uint64_t callee_bytes = 0;
  for (auto& function : module->functions) {
    if (!function->entry) callee_bytes += round_up(function->shared_bytes, 16);
  }
  if (callee_bytes > limits::kSharedBytes) {
    return Status::invalid(module->name + ": the shared variables of the module's functions take " +
                           std::to_string(callee_bytes) + " bytes, more than the " +
                           std::to_string(limits::kSharedBytes) + " that are supported");
  }
  const uint32_t callee_shared = static_cast<uint32_t>(callee_bytes);
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
  return place_shared(module);
}

}  // namespace mla::emu

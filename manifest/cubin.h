// SPDX-License-Identifier: Apache-2.0
//
// Reading cubins (CUDA ELF64 files) without a driver and without NVIDIA's tools. No function here
// reads outside `image`, whatever the bytes are. Messages are "<file>: <where>: <what>". All
// functions are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manifest/status.h"

namespace mla::cubin {

// Checks everything that a reader follows by offset: ELF header, program and section headers,
// string tables, symbols, relocations, notes and .nv.info records. To be done before the driver
// sees the image, for cuLibraryLoadData takes no length. Linear in the number of symbols and
// relocations. NVIDIA's Mercury sections (.nv.merc.*, .nv.capmerc.*) are undocumented: of them the
// bounds are checked and nothing within.
Status check(std::span<const std::byte> image, std::string_view file);

// The same, and that the code is for `sm` (90, 120) and has the kernel `symbol`.
Status check(std::span<const std::byte> image, std::string_view file, uint32_t sm, std::string_view symbol);

struct Param {
  uint32_t ordinal = 0;
  uint32_t offset = 0;  // bytes from the start of the parameters
  uint32_t bytes = 0;
};

struct Kernel {
  std::string symbol;
  uint64_t code_offset = 0;  // of its instructions in the file
  uint64_t code_bytes = 0;
  uint32_t registers = 0;                    // of a thread
  uint32_t stack_bytes = 0;                  // of a thread, callees included
  uint32_t static_smem = 0;                  // of a CTA, without what the system reserves
  std::array<uint32_t, 3> threads = {};      // required block (.reqntid); zeros: none
  std::array<uint32_t, 3> max_threads = {};  // largest block (.maxntid); zeros: none
  std::array<uint32_t, 3> cluster = {};      // required cluster; zeros: none
  uint32_t param_bytes = 0;   // of all parameters, with the padding before the first (sm_90: alignment)
  std::vector<Param> params;  // by ordinal
};

struct Info {
  uint32_t sm = 0;           // 90, 120
  uint32_t abi_version = 0;  // 7 or 8
  // From .note.nv.tkinfo; empty when the note was stripped.
  std::string toolkit;       // "13.0.88"
  std::string command_line;  // of ptxas
  std::string arch;          // "sm_120f", the only place that tells "f" from no suffix
  // The 32-bit `__constant__` objects with their initial values, in the order of the symbol table.
  std::vector<std::pair<std::string, uint32_t>> constants;
  std::vector<Kernel> kernels;

  const uint32_t* constant(std::string_view name) const;
};

// Checks as `check` and reads what the cubin says about itself.
Status read(std::span<const std::byte> image, std::string_view file, Info* out);

}  // namespace mla::cubin

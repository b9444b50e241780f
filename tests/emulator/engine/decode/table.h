// SPDX-License-Identifier: Apache-2.0
//
// The instruction table: the first part of an instruction's name (before the first dot) -> its decoder.
// A decoder consumes modifiers and operands and fills Decoder::in; forms that it does not know end in
// Decoder::fail. Every file of instructions/ adds its own.
#pragma once

#include <map>
#include <string_view>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

using Decode = void (*)(Decoder& d);
using InstructionTable = std::map<std::string_view, Decode>;

void add_address_instructions(InstructionTable* table);
void add_arithmetic_instructions(InstructionTable* table);
void add_atomic_instructions(InstructionTable* table);
void add_barrier_instructions(InstructionTable* table);
void add_bit_instructions(InstructionTable* table);
void add_comparison_instructions(InstructionTable* table);
void add_control_instructions(InstructionTable* table);
void add_conversion_instructions(InstructionTable* table);
void add_copy_instructions(InstructionTable* table);
void add_fence_instructions(InstructionTable* table);
void add_float_instructions(InstructionTable* table);
void add_integer_instructions(InstructionTable* table);
void add_load_store_instructions(InstructionTable* table);
void add_matrix_instructions(InstructionTable* table);
void add_mbarrier_instructions(InstructionTable* table);
void add_mma_instructions(InstructionTable* table);
void add_move_instructions(InstructionTable* table);
void add_warp_instructions(InstructionTable* table);
void add_wgmma_instructions(InstructionTable* table);
void add_other_instructions(InstructionTable* table);

// Decodes one statement; throws Unsupported.
void decode_instruction(Decoder& d);

}  // namespace mla::emu

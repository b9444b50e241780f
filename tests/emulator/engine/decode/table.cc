// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

InstructionTable make_table() {
  InstructionTable table;
  add_address_instructions(&table);
  add_arithmetic_instructions(&table);
  add_atomic_instructions(&table);
  add_barrier_instructions(&table);
  add_bit_instructions(&table);
  add_comparison_instructions(&table);
  add_control_instructions(&table);
  add_conversion_instructions(&table);
  add_copy_instructions(&table);
  add_fence_instructions(&table);
  add_float_instructions(&table);
  add_integer_instructions(&table);
  add_load_store_instructions(&table);
  add_matrix_instructions(&table);
  add_mbarrier_instructions(&table);
  add_mma_instructions(&table);
  add_move_instructions(&table);
  add_other_instructions(&table);
  add_warp_instructions(&table);
  add_wgmma_instructions(&table);
  return table;
}

}  // namespace

void decode_instruction(Decoder& d) {
  static const InstructionTable table = make_table();
  const auto found = table.find(d.name());
  if (found == table.end()) d.fail("unknown instruction " + d.s.op_text);
  found->second(d);
  d.finish();
}

}  // namespace mla::emu

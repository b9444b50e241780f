// SPDX-License-Identifier: Apache-2.0
//
// Names that integers and floats share.
#include "tests/emulator/engine/instructions/arithmetic.h"

#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

bool has(const Decoder& d, std::initializer_list<std::string_view> types) {
  for (const std::string& part : d.s.op) {
    for (std::string_view type : types) {
      if (part == type) return true;
    }
  }
  return false;
}

template <auto Float>
void float_by_width(Decoder& d) {
  has(d, {"f16", "bf16", "f16x2", "bf16x2"}) ? decode_float16(d) : Float(d);
}

template <auto Integer, auto Float>
void by_type(Decoder& d) {
  has(d, {"f32", "f64", "f16", "bf16", "f16x2", "bf16x2"}) ? float_by_width<Float>(d) : Integer(d);
}

}  // namespace

void add_arithmetic_instructions(InstructionTable* table) {
  InstructionTable& t = *table;
  t["add"] = t["sub"] = by_type<decode_integer_arithmetic, decode_float_arithmetic>;
  t["min"] = t["max"] = by_type<decode_integer_arithmetic, decode_float_minmax>;
  t["div"] = by_type<decode_integer_arithmetic, decode_float_division>;
  t["mul"] = t["mad"] = by_type<decode_integer_multiply, decode_float_arithmetic>;
  t["neg"] = t["abs"] = by_type<decode_integer_sign, decode_float_sign>;
  t["fma"] = float_by_width<decode_float_arithmetic>;
  t["ex2"] = t["tanh"] = float_by_width<decode_float_function>;
}

}  // namespace mla::emu

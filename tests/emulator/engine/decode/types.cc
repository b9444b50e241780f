// SPDX-License-Identifier: Apache-2.0
//
// Types of PTX, and how many bits they have.
#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

namespace {

struct TypeRow {
  const char* name;
  T type;
  uint32_t bits;
};

constexpr TypeRow kRows[] = {
    {"pred", T::kPred, 1},
    {"b8", T::kB8, 8},
    {"b16", T::kB16, 16},
    {"b32", T::kB32, 32},
    {"b64", T::kB64, 64},
    {"b128", T::kB128, 128},
    {"u8", T::kU8, 8},
    {"u16", T::kU16, 16},
    {"u32", T::kU32, 32},
    {"u64", T::kU64, 64},
    {"s8", T::kS8, 8},
    {"s16", T::kS16, 16},
    {"s32", T::kS32, 32},
    {"s64", T::kS64, 64},
    {"f16", T::kF16, 16},
    {"bf16", T::kBF16, 16},
    {"f32", T::kF32, 32},
    {"f64", T::kF64, 64},
    {"f16x2", T::kF16x2, 32},
    {"bf16x2", T::kBF16x2, 32},
    {"e4m3x2", T::kE4M3x2, 16},
    {"e5m2x2", T::kE5M2x2, 16},
    {"e4m3", T::kE4M3, 8},
    {"e5m2", T::kE5M2, 8},
    {"ue8m0x2", T::kUE8M0x2, 16},
    {"ue8m0", T::kUE8M0, 8},
    {"tf32", T::kTF32, 32},
    {"u16x2", T::kU16x2, 32},
    {"s16x2", T::kS16x2, 32},
};

}  // namespace

uint32_t bits_of_class(RegClass cls) {
  switch (cls) {
    case RegClass::kPred:
      return 1;
    case RegClass::k8:
      return 8;
    case RegClass::k16:
      return 16;
    case RegClass::k32:
      return 32;
    case RegClass::k64:
      return 64;
    case RegClass::k128:
      return 128;
  }
  return 0;
}

// Bytes in the register file, for 32 lanes.
uint32_t slot_bytes(uint32_t bits) { return bits == 1 ? 4 : bits <= 32 ? 128 : bits == 64 ? 256 : 512; }

uint32_t bits_of(T t) {
  for (const TypeRow& row : kRows) {
    if (row.type == t) return row.bits;
  }
  return 0;
}

const char* type_name(T t) {
  for (const TypeRow& row : kRows) {
    if (row.type == t) return row.name;
  }
  return "?";
}

bool is_signed(T t) { return t == T::kS8 || t == T::kS16 || t == T::kS32 || t == T::kS64; }
bool is_float(T t) { return t == T::kF16 || t == T::kBF16 || t == T::kF32 || t == T::kF64; }

bool is_integer(T t) {
  return t == T::kU16 || t == T::kS16 || t == T::kU32 || t == T::kS32 || t == T::kU64 || t == T::kS64;
}

T find_type_named(std::string_view name) {
  for (const TypeRow& row : kRows) {
    if (row.name == name) return row.type;
  }
  return T::kNone;
}

}  // namespace mla::emu

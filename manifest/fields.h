// SPDX-License-Identifier: Apache-2.0
//
// What follows from the field table (kernels/common/mla_cubin_info.h) for everyone who reads, writes
// or compares facts: JSON keys, words, spelling, and the rules that values must obey. All functions
// are thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/json.h"

namespace mla::manifest {

using cubin::Facts;
using cubin::Field;
using cubin::FieldType;

// Whether a kernel of this kind has the field. Of a kind that is no word (0, for instance) only the
// fields of all kinds are known.
constexpr bool applies(const Field& field, uint32_t kind) {
  return field.kinds == cubin::kKinds_all || (kind < 32 && (field.kinds >> kind & 1) != 0);
}

// Values of a field of type swizzle: bytes.
inline constexpr uint32_t kSwizzles[] = {0, 32, 64, 128};

int64_t get(const Facts& facts, const Field& field);
void set(Facts* facts, const Field& field, int64_t value);

// The field called `name`, null if there is none.
const Field* find_field(std::string_view name);

// The words of a field's type; empty for numbers.
std::span<const json::Word> words_of(FieldType type);
// Bits with a word each, not one number.
constexpr bool is_bits(FieldType type) {
  return type == FieldType::feature || type == FieldType::requirement;
}

// The key of the field in its section's object: its name without "<section>_" and "_bits".
std::string_view json_key(const Field& field);
// "/config/rows", "/priority": where the field stands in a kernel's entry.
std::string json_pointer(const Field& field);

// The value in words: "128", "e4m3", "lse, pdl"; a number that no word stands for as a number.
std::string spell(const Field& field, int64_t value);
// "an integer from 1 to 1024", "\"e4m3\", \"bf16\" or \"f32\""
std::string expected(const Field& field);
// Whether the field can have this value.
bool is_valid(const Field& field, int64_t value);

// The first rule between fields that the facts break, as a sentence: "threads is 100; expected a
// multiple of 32". "" if they break none. Every field must have a valid value, except that a word
// may be 0 (unknown): rules that need it are passed over.
std::string contradiction(const Facts& facts);

}  // namespace mla::manifest

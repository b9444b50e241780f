// SPDX-License-Identifier: Apache-2.0
#include "manifest/fields.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/common/mla_params.h"
#include "manifest/words.h"

namespace mla::manifest {

int64_t get(const Facts& facts, const Field& field) {
  uint32_t bits = 0;
  std::memcpy(&bits, reinterpret_cast<const char*>(&facts) + field.offset, sizeof(bits));
  return field.type == FieldType::integer ? static_cast<int32_t>(bits) : static_cast<int64_t>(bits);
}

void set(Facts* facts, const Field& field, int64_t value) {
  const uint32_t bits = static_cast<uint32_t>(value);
  std::memcpy(reinterpret_cast<char*>(facts) + field.offset, &bits, sizeof(bits));
}

const Field* find_field(std::string_view name) {
  for (const Field& field : cubin::kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::span<const json::Word> words_of(FieldType type) {
  switch (type) {
    case FieldType::number:
    case FieldType::integer:
    case FieldType::boolean:
    case FieldType::swizzle:
      return {};
    case FieldType::kind:
      return kKindWords;
    case FieldType::family:
      return kFamilyWords;
    case FieldType::dtype:
      return kDTypeWords;
    case FieldType::mma:
      return kMmaWords;
    case FieldType::arithmetic:
      return kArithmeticWords;
    case FieldType::cache_layout:
      return kCacheLayoutWords;
    case FieldType::params_struct:
      return kParamsWords;
    case FieldType::feature:
      return kFeatureWords;
    case FieldType::requirement:
      return kRequirementWords;
  }
  return {};
}

std::string_view json_key(const Field& field) {
  std::string_view key = field.name;
  const std::string_view section = field.section;
  if (key.size() > section.size() && key.starts_with(section) && key[section.size()] == '_') {
    key.remove_prefix(section.size() + 1);
  }
  constexpr std::string_view kBits = "_bits";
  if (key.ends_with(kBits)) key.remove_suffix(kBits.size());
  return key;
}

std::string json_pointer(const Field& field) {
  const std::string section =
      field.section == std::string_view("kernel") ? "" : "/" + std::string(field.section);
  return section + "/" + std::string(json_key(field));
}

std::string spell(const Field& field, int64_t value) {
  if (field.type == FieldType::boolean && (value == 0 || value == 1)) return value != 0 ? "true" : "false";
  const std::span<const json::Word> words = words_of(field.type);
  if (!is_bits(field.type)) {
    const std::string_view word = word_for(words, static_cast<uint32_t>(value));
    return word.empty() ? std::to_string(value) : std::string(word);
  }
  std::string text;
  for (const json::Word& word : words) {
    if ((value & word.number) == 0) continue;
    text += (text.empty() ? "" : ", ") + std::string(word.text);
    value &= ~int64_t{word.number};
  }
  if (value != 0) text += (text.empty() ? "bits " : ", bits ") + std::to_string(value);
  return text.empty() ? "none" : text;
}

std::string expected(const Field& field) {
  switch (field.type) {
    case FieldType::number:
    case FieldType::integer:
      return "an integer from " + std::to_string(field.low) + " to " + std::to_string(field.high);
    case FieldType::boolean:
      return "true or false";
    case FieldType::swizzle:
      return "0, 32, 64 or 128";
    case FieldType::feature:
      return "an object of true and false";
    case FieldType::requirement:
      return "an array of words";
    default:
      return json::one_of(words_of(field.type));
  }
}

bool is_valid(const Field& field, int64_t value) {
  switch (field.type) {
    case FieldType::number:
    case FieldType::integer:
    case FieldType::boolean:
      return value >= field.low && value <= field.high;
    case FieldType::swizzle:
      return std::find(std::begin(kSwizzles), std::end(kSwizzles), value) != std::end(kSwizzles);
    case FieldType::feature:
    case FieldType::requirement: {
      for (const json::Word& word : words_of(field.type)) value &= ~int64_t{word.number};
      return value == 0;
    }
    default:
      return !word_for(words_of(field.type), static_cast<uint32_t>(value)).empty();
  }
}

namespace {

std::string is(const char* name, uint64_t value) {
  return std::string(name) + " is " + std::to_string(value);
}

// The rules of tensor maps, so that encoding one cannot fail for a reason that the caller of a launch
// has no part in.
std::string box_contradiction(const char* name, uint32_t box, const char* swizzle_name, uint32_t swizzle,
                              uint32_t element) {
  const uint32_t bytes = box * element;
  if (bytes % 16 != 0) {
    return is(name, box) + ", " + std::to_string(bytes) + " bytes; expected a multiple of 16 bytes";
  }
  if (swizzle != 0 && bytes > swizzle) {
    return is(name, box) + ", " + std::to_string(bytes) + " bytes; expected at most " + swizzle_name + ", " +
           std::to_string(swizzle) + " bytes";
  }
  return "";
}

}  // namespace

std::string contradiction(const Facts& facts) {
  if (facts.threads % 32 != 0) return is("threads", facts.threads) + "; expected a multiple of 32";
  if (facts.zeroed_bytes != 0 && facts.zeroed_bytes < sizeof(WorkspaceHeader)) {
    return is("zeroed_bytes", facts.zeroed_bytes) + "; expected 0, or room for the workspace's header of " +
           std::to_string(sizeof(WorkspaceHeader)) + " bytes";
  }
  if (facts.kind != kind::kDECODE) return "";
  if (facts.head_dim_v > facts.head_dim_k) {
    return is("head_dim_v", facts.head_dim_v) + "; expected at most head_dim_k, " +
           std::to_string(facts.head_dim_k);
  }
  if (facts.page_size_max % facts.page_size_multiple != 0) {
    return is("page_size_max", facts.page_size_max) + "; expected a multiple of page_size_multiple, " +
           std::to_string(facts.page_size_multiple);
  }
  if (facts.tensor_maps == 0) return "";
  // The parameter struct has the logarithm of a box's tokens.
  if (!std::has_single_bit(facts.box_tokens)) {
    return is("box_tokens", facts.box_tokens) + "; expected a power of two";
  }
  const uint32_t element = dtype::bytes(facts.kv_dtype);
  if (element == 0) return "";
  std::string text = box_contradiction("k_box", facts.k_box, "k_swizzle", facts.k_swizzle, element);
  if (text.empty()) text = box_contradiction("v_box", facts.v_box, "v_swizzle", facts.v_swizzle, element);
  return text;
}

}  // namespace mla::manifest

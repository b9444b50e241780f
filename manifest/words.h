// SPDX-License-Identifier: Apache-2.0
//
// The word lists of kernels/common/mla_words.h as tables, for JSON and messages.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/common/mla_words.h"
#include "manifest/json.h"

namespace mla::manifest {

#define MLA_WORD_ROW(word, NAME, number, ...) {#word, number},
inline constexpr json::Word kDTypeWords[] = {MLA_DTYPE_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kKindWords[] = {MLA_KIND_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kFamilyWords[] = {MLA_FAMILY_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kMmaWords[] = {MLA_MMA_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kArithmeticWords[] = {MLA_ARITHMETIC_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kCacheLayoutWords[] = {MLA_CACHE_LAYOUT_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kParamsWords[] = {MLA_PARAMS_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kFeatureWords[] = {MLA_FEATURE_WORDS(MLA_WORD_ROW)};
inline constexpr json::Word kRequirementWords[] = {MLA_REQUIREMENT_WORDS(MLA_WORD_ROW)};
#undef MLA_WORD_ROW
// Of a target; the numbers stand for nothing.
inline constexpr json::Word kSuffixWords[] = {{"", 0}, {"a", 'a'}, {"f", 'f'}};

// The word for `number`, "" if it has none.
constexpr std::string_view word_for(std::span<const json::Word> words, uint32_t number) {
  for (const json::Word& word : words) {
    if (word.number == number) return word.text;
  }
  return "";
}

// The entry of a word, null if there is none.
constexpr const json::Word* find_word(std::span<const json::Word> words, std::string_view text) {
  for (const json::Word& word : words) {
    if (word.text == text) return &word;
  }
  return nullptr;
}

// Rules for text fields, shared by manifests and matrices.
bool is_name(std::string_view text);        // letters, digits, '_', '-', '.', '+'
bool is_identifier(std::string_view text);  // of C
bool is_version(std::string_view text);     // digits with dots between, "13.0.88"
bool is_sha256(std::string_view text);      // 64 lower-case hex digits

// "sm_120f" -> {120, "f"}; false if `text` is no target name.
struct Target;
bool parse_target(std::string_view text, Target* out);

}  // namespace mla::manifest

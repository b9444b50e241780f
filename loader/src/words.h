// SPDX-License-Identifier: Apache-2.0
//
// The words of kernels/common/mla_words.h as the C ABI has them. A word that the public header lacks,
// or has with another number, does not compile here.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/common/mla_words.h"
#include "loader/include/mla_loader.h"

namespace mla::loader {

struct Word {
  const char* word;   // "e4m3"
  const char* macro;  // "MLA_DTYPE_E4M3"
  uint32_t number;
};

// Kinds, dtypes and so on are packed in four bits each by the selector.
inline constexpr uint32_t kWordBits = 4;

#define MLA_WORD(prefix, word, NAME, number) {#word, #prefix #NAME, number},
#define MLA_DTYPE_WORD(word, NAME, number, bytes, meaning) MLA_WORD(MLA_DTYPE_, word, NAME, number)
#define MLA_KIND_WORD(word, NAME, number, meaning) MLA_WORD(MLA_KIND_, word, NAME, number)
#define MLA_FAMILY_WORD(word, NAME, number, meaning) MLA_WORD(MLA_FAMILY_, word, NAME, number)
#define MLA_MMA_WORD(word, NAME, number, meaning) MLA_WORD(MLA_MMA_, word, NAME, number)
#define MLA_ARITHMETIC_WORD(word, NAME, number, meaning) MLA_WORD(MLA_ARITHMETIC_, word, NAME, number)
#define MLA_CACHE_LAYOUT_WORD(word, NAME, number, meaning) MLA_WORD(MLA_CACHE_LAYOUT_, word, NAME, number)
#define MLA_FEATURE_WORD(word, NAME, number, meaning) MLA_WORD(MLA_FEATURE_, word, NAME, number)
#define MLA_PARAMS_WORD(word, NAME, number, meaning) MLA_WORD(, word, NAME, number)
inline constexpr Word kDTypes[] = {MLA_DTYPE_WORDS(MLA_DTYPE_WORD)};
inline constexpr Word kKinds[] = {MLA_KIND_WORDS(MLA_KIND_WORD)};
inline constexpr Word kFamilies[] = {MLA_FAMILY_WORDS(MLA_FAMILY_WORD)};
inline constexpr Word kMmas[] = {MLA_MMA_WORDS(MLA_MMA_WORD)};
inline constexpr Word kArithmetics[] = {MLA_ARITHMETIC_WORDS(MLA_ARITHMETIC_WORD)};
inline constexpr Word kCacheLayouts[] = {MLA_CACHE_LAYOUT_WORDS(MLA_CACHE_LAYOUT_WORD)};
inline constexpr Word kFeatures[] = {MLA_FEATURE_WORDS(MLA_FEATURE_WORD)};
inline constexpr Word kParamsStructs[] = {MLA_PARAMS_WORDS(MLA_PARAMS_WORD)};
#undef MLA_WORD
#undef MLA_DTYPE_WORD
#undef MLA_KIND_WORD
#undef MLA_FAMILY_WORD
#undef MLA_MMA_WORD
#undef MLA_ARITHMETIC_WORD
#undef MLA_CACHE_LAYOUT_WORD
#undef MLA_FEATURE_WORD
#undef MLA_PARAMS_WORD

#define MLA_SAME(prefix, NAME, number, most) \
  static_assert(prefix##NAME == number && number > 0 && number <= most);
#define MLA_SAME_DTYPE(word, NAME, number, bytes, meaning) MLA_SAME(MLA_DTYPE_, NAME, number, 15)
#define MLA_SAME_KIND(word, NAME, number, meaning) MLA_SAME(MLA_KIND_, NAME, number, 15)
#define MLA_SAME_FAMILY(word, NAME, number, meaning) MLA_SAME(MLA_FAMILY_, NAME, number, 15)
#define MLA_SAME_MMA(word, NAME, number, meaning) MLA_SAME(MLA_MMA_, NAME, number, 15)
#define MLA_SAME_ARITHMETIC(word, NAME, number, meaning) MLA_SAME(MLA_ARITHMETIC_, NAME, number, 15)
#define MLA_SAME_CACHE_LAYOUT(word, NAME, number, meaning) MLA_SAME(MLA_CACHE_LAYOUT_, NAME, number, 15)
#define MLA_SAME_FEATURE(word, NAME, number, meaning) MLA_SAME(MLA_FEATURE_, NAME, number, 0x80000000u)
MLA_DTYPE_WORDS(MLA_SAME_DTYPE)
MLA_KIND_WORDS(MLA_SAME_KIND)
MLA_FAMILY_WORDS(MLA_SAME_FAMILY)
MLA_MMA_WORDS(MLA_SAME_MMA)
MLA_ARITHMETIC_WORDS(MLA_SAME_ARITHMETIC)
MLA_CACHE_LAYOUT_WORDS(MLA_SAME_CACHE_LAYOUT)
MLA_FEATURE_WORDS(MLA_SAME_FEATURE)
#undef MLA_SAME
#undef MLA_SAME_DTYPE
#undef MLA_SAME_KIND
#undef MLA_SAME_FAMILY
#undef MLA_SAME_MMA
#undef MLA_SAME_ARITHMETIC
#undef MLA_SAME_CACHE_LAYOUT
#undef MLA_SAME_FEATURE

constexpr bool is_word(std::span<const Word> list, int32_t number) {
  for (const Word& word : list) {
    if (static_cast<int64_t>(word.number) == number) return true;
  }
  return false;
}

constexpr uint32_t all_bits(std::span<const Word> list) {
  uint32_t bits = 0;
  for (const Word& word : list) bits |= word.number;
  return bits;
}

// "e4m3", "" if it is no word; static storage.
const char* static_word_name(std::span<const Word> list, uint32_t number);
// "e4m3"; a number that is no word as "7".
std::string word_name(std::span<const Word> list, uint32_t number);
// "LSE, PDL": the names of bits, without the macro's prefix.
std::string feature_names(uint32_t features);
// "MLA_DTYPE_E4M3 (1), MLA_DTYPE_BF16 (2)"
std::string allowed_words(std::span<const Word> list);

}  // namespace mla::loader

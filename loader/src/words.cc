// SPDX-License-Identifier: Apache-2.0
#include "loader/src/words.h"

#include <cstring>

#include "loader/src/error.h"

namespace mla::loader {

const char* static_word_name(std::span<const Word> list, uint32_t number) {
  for (const Word& word : list) {
    if (word.number == number) return word.word;
  }
  return "";
}

std::string word_name(std::span<const Word> list, uint32_t number) {
  const char* name = static_word_name(list, number);
  return name[0] != '\0' ? name : std::to_string(number);
}

std::string feature_names(uint32_t features) {
  std::string out;
  for (const Word& word : kFeatures) {
    if ((features & word.number) == 0) continue;
    out += text(out.empty() ? "" : ", ", word.macro + std::strlen("MLA_FEATURE_"));
  }
  return out;
}

std::string allowed_words(std::span<const Word> list) {
  std::string out;
  for (const Word& word : list) out += text(out.empty() ? "" : ", ", word.macro, " (", word.number, ")");
  return out;
}

}  // namespace mla::loader

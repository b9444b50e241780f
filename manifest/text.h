// SPDX-License-Identifier: Apache-2.0
//
// Text of others in messages: names out of files, paths, what a parser says. Thread-safe. A header
// alone, because status.h needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace mla {

namespace text_detail {

inline constexpr size_t kMostOfAName = 80;

// The length in bytes of the character that `text` begins with, and the character; 0 if it is none.
inline size_t decode(std::string_view text, uint32_t* character) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const uint32_t first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || length > text.size()) return 0;
  uint32_t value = length == 1 ? first : first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3f);
  }
  // Longer than it need be, half of a surrogate pair, beyond Unicode.
  if ((length == 3 && value < 0x800) || (length == 4 && value < 0x10000) || value > 0x10ffff ||
      (value >= 0xd800 && value < 0xe000)) {
    return 0;
  }
  *character = value;
  return length;
}

inline bool is_control(uint32_t character) {
  return character < 0x20 || (character >= 0x7f && character < 0xa0) ||
         (character >= 0x2028 && character <= 0x202e) || (character >= 0x2066 && character <= 0x2069);
}

inline std::string make_safe(std::string_view text, size_t most, bool one_line) {
  std::string safe;
  while (!text.empty()) {
    uint32_t character = 0;
    size_t length = decode(text, &character);
    char escape[16] = "";
    if (length == 0) {
      length = 1;
      snprintf(escape, sizeof(escape), "\\x%02x", static_cast<unsigned char>(text.front()));
    } else if (is_control(character) && (one_line || (character != '\n' && character != '\t'))) {
      snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(character));
    }
    const std::string_view piece = escape[0] != '\0' ? std::string_view(escape) : text.substr(0, length);
    if (safe.size() + piece.size() > most) return safe + "...";
    safe += piece;
    text.remove_prefix(length);
  }
  return safe;
}

}  // namespace text_detail

// `text` as valid UTF-8 that does nothing to a terminal: bytes that are no UTF-8 become \xNN, control
// characters (C0 but for newline and tab, DEL, C1, line separators, changes of direction) \uNNNN. Cut
// between characters, with "..." after, where it would be longer than `most` bytes.
inline std::string safe_text(std::string_view text, size_t most) {
  return text_detail::make_safe(text, most, false);
}

// The same in one line and at most 80 bytes: a name that a message mentions.
inline std::string printable(std::string_view text) {
  return text_detail::make_safe(text, text_detail::kMostOfAName, true);
}

}  // namespace mla

// SPDX-License-Identifier: Apache-2.0
#include "loader/src/error.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace mla::loader {
namespace {

struct LastError {
  std::string message;
  const char* text = "";
};

// A bundle of 500 kernels has about 150 KB of reasons.
constexpr size_t kMaxMessageBytes = 1 << 20;

// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none.
size_t character_bytes(std::string_view text) {
  const auto byte = [text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xc2 && first <= 0xdf   ? 2
                       : first >= 0xe0 && first <= 0xef ? 3
                       : first >= 0xf0 && first <= 0xf4 ? 4
                                                        : 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Too long a form, surrogates, and past U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return bytes;
}

LastError& this_thread() {
  thread_local LastError last;
  return last;
}

}  // namespace

void append(std::string* out, std::string_view part) { out->append(part); }

void append(std::string* out, Hex part) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "0x%" PRIx64, part.value);
  out->append(digits);
}

void append(std::string* out, double part) {
  // As printf's %g in the "C" locale, whatever the program's locale.
  char digits[40];
  const std::to_chars_result end =
      std::to_chars(digits, digits + sizeof digits, part, std::chars_format::general, 6);
  out->append(digits, end.ptr);
}

void append_signed(std::string* out, int64_t part) { out->append(std::to_string(part)); }
void append_unsigned(std::string* out, uint64_t part) { out->append(std::to_string(part)); }

Error from_status(const Status& status) {
  switch (status.kind()) {
    case StatusKind::kOk:
      return {};
    case StatusKind::kInvalid:
      return {MLA_ERROR_INVALID_BUNDLE, status.message()};
    case StatusKind::kIo:
    case StatusKind::kNotFound:
      return {MLA_ERROR_IO, status.message()};
  }
  return {MLA_ERROR_INTERNAL, status.message()};
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = character_bytes(text.substr(i));
    const unsigned char first = static_cast<unsigned char>(text[i]);
    const bool control = (first < 0x20 && first != '\n') || first == 0x7f ||
                         (bytes == 2 && first == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (bytes != 0 && !control) {
      out.append(text.substr(i, bytes));
      i += bytes;
      continue;
    }
    for (size_t left = std::max<size_t>(bytes, 1); left > 0; --left, ++i) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02X",
                    static_cast<unsigned>(static_cast<unsigned char>(text[i])));
      out.append(escaped);
    }
  }
  return out;
}

mla_status set_last_error(const Error& error, ErrorBuffer buffer) noexcept {
  if (error.ok()) return MLA_SUCCESS;
  LastError& last = this_thread();
  try {
    const std::string_view message = error.message();
    last.message = printable(message.substr(0, kMaxMessageBytes));
    if (message.size() > kMaxMessageBytes) {
      last.message += text(" ... (", message.size() - kMaxMessageBytes, " bytes more)");
    }
    last.text = last.message.c_str();
  } catch (...) {
    last.text = "out of host memory while an error message was written";
  }
  copy_out(last.text, buffer.text, buffer.size, nullptr);
  return error.code();
}

mla_status set_last_error(mla_status code, const char* static_message, ErrorBuffer buffer) noexcept {
  this_thread().text = static_message;
  copy_out(static_message, buffer.text, buffer.size, nullptr);
  return code;
}

const char* last_error() noexcept { return this_thread().text; }

mla_status copy_out(std::string_view message, char* buffer, uint64_t size, uint64_t* needed) noexcept {
  if (needed != nullptr) *needed = message.size() + 1;
  if (buffer == nullptr || size == 0) return MLA_SUCCESS;
  uint64_t copied = std::min<uint64_t>(message.size(), size - 1);
  // Not within a character.
  while (copied < message.size() && copied > 0 &&
         (static_cast<unsigned char>(message[copied]) & 0xc0) == 0x80) {
    --copied;
  }
  std::memcpy(buffer, message.data(), copied);
  buffer[copied] = '\0';
  return MLA_SUCCESS;
}

}  // namespace mla::loader

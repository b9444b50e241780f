// SPDX-License-Identifier: Apache-2.0
#include "loader/src/error.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "manifest/text.h"

namespace mla::loader {
namespace {

struct LastError {
  std::string message;
  const char* text = "";
};

// A bundle of 500 kernels has about 150 KB of reasons.
constexpr size_t kMaxMessageBytes = 1 << 20;

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

mla_status set_last_error(const Error& error, ErrorBuffer buffer) noexcept {
  if (error.ok()) return MLA_SUCCESS;
  LastError& last = this_thread();
  try {
    last.message = safe_text(error.message(), kMaxMessageBytes);
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

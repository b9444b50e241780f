// SPDX-License-Identifier: Apache-2.0
#include "loader/src/error.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace mla::loader {
namespace {

struct LastError {
  std::string message;
  const char* text = "";
};

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
  char digits[40];
  std::snprintf(digits, sizeof digits, "%g", part);
  out->append(digits);
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

mla_status set_last_error(const Error& error) noexcept {
  if (error.ok()) return MLA_SUCCESS;
  LastError& last = this_thread();
  try {
    last.message = error.message();
    last.text = last.message.c_str();
  } catch (...) {
    last.text = "out of host memory while an error message was written";
  }
  return error.code();
}

mla_status set_last_error(mla_status code, const char* static_message) noexcept {
  this_thread().text = static_message;
  return code;
}

const char* last_error() noexcept { return this_thread().text; }

mla_status copy_out(std::string_view message, char* buffer, uint64_t size, uint64_t* needed) noexcept {
  if (needed != nullptr) *needed = message.size() + 1;
  if (buffer == nullptr || size == 0) return MLA_SUCCESS;
  const uint64_t copied = std::min<uint64_t>(message.size(), size - 1);
  std::memcpy(buffer, message.data(), copied);
  buffer[copied] = '\0';
  return MLA_SUCCESS;
}

}  // namespace mla::loader

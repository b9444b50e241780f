// SPDX-License-Identifier: Apache-2.0
//
// Errors as values within the loader: a status number and the sentence for mla_last_error().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "loader/include/mla_loader.h"
#include "manifest/status.h"

namespace mla::loader {

class [[nodiscard]] Error {
 public:
  Error() = default;  // success; allocates nothing
  Error(mla_status code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == MLA_SUCCESS; }
  mla_status code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string& message() { return message_; }

 private:
  mla_status code_ = MLA_SUCCESS;
  std::string message_;
};

struct Hex {
  uint64_t value;
};

void append(std::string* out, std::string_view part);
void append(std::string* out, Hex part);
void append(std::string* out, double part);
void append_signed(std::string* out, int64_t part);
void append_unsigned(std::string* out, uint64_t part);

// The parts one after another: text, integers (decimal), floats, Hex.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::string out;
  const auto add = [&out](const auto& part) {
    using Part = std::decay_t<decltype(part)>;
    if constexpr (std::is_integral_v<Part> && std::is_signed_v<Part>) {
      append_signed(&out, part);
    } else if constexpr (std::is_integral_v<Part>) {
      append_unsigned(&out, part);
    } else {
      append(&out, part);
    }
  };
  (add(parts), ...);
  return out;
}

template <typename... Parts>
Error invalid_argument(const Parts&... parts) {
  return {MLA_ERROR_INVALID_ARGUMENT, text(parts...)};
}

// A failure of the manifest code as an error of the loader.
Error from_status(const Status& status);

// Where a caller wants the sentence besides.
struct ErrorBuffer {
  char* text = nullptr;
  uint64_t size = 0;
};

// The calling thread's last error, safe to print (manifest/text.h), copied to `buffer` too.
mla_status set_last_error(const Error& error, ErrorBuffer buffer = {}) noexcept;
mla_status set_last_error(mla_status code, const char* static_message, ErrorBuffer buffer = {}) noexcept;
const char* last_error() noexcept;

// Copies `message`, cut at a character, with its NUL, as mla_last_error_copy documents.
mla_status copy_out(std::string_view message, char* buffer, uint64_t size, uint64_t* needed) noexcept;

}  // namespace mla::loader

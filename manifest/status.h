// SPDX-License-Identifier: Apache-2.0
//
// Errors as values: a kind and a sentence that a user can act on.
#pragma once

#include <string>
#include <string_view>

#include "manifest/text.h"

namespace mla {

enum class StatusKind {
  kOk,
  kInvalid,   // the content is wrong
  kIo,        // a file cannot be opened, read or written
  kNotFound,  // no such thing
};

class [[nodiscard]] Status {
 public:
  static constexpr size_t kMaxMessage = 4096;

  Status() = default;
  // The message is kept as safe_text (text.h) of at most kMaxMessage bytes and "...".
  Status(StatusKind kind, std::string_view message)
      : kind_(kind), message_(safe_text(message, kMaxMessage)) {}

  static Status invalid(std::string_view message) { return {StatusKind::kInvalid, message}; }
  static Status io(std::string_view message) { return {StatusKind::kIo, message}; }

  bool ok() const { return kind_ == StatusKind::kOk; }
  StatusKind kind() const { return kind_; }
  const std::string& message() const { return message_; }

 private:
  StatusKind kind_ = StatusKind::kOk;
  std::string message_;
};

}  // namespace mla

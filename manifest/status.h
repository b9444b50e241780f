// SPDX-License-Identifier: Apache-2.0
//
// Errors as values: a kind and a sentence that a user can act on.
#pragma once

#include <string>
#include <utility>

namespace mla {

enum class StatusKind {
  kOk,
  kInvalid,   // the content is wrong
  kIo,        // a file cannot be opened, read or written
  kNotFound,  // no such thing
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  static Status invalid(std::string message) { return {StatusKind::kInvalid, std::move(message)}; }
  static Status io(std::string message) { return {StatusKind::kIo, std::move(message)}; }

  bool ok() const { return kind_ == StatusKind::kOk; }
  StatusKind kind() const { return kind_; }
  const std::string& message() const { return message_; }

 private:
  StatusKind kind_ = StatusKind::kOk;
  std::string message_;
};

}  // namespace mla

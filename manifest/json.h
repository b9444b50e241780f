// SPDX-License-Identifier: Apache-2.0
//
// Strict reading of JSON text: a tree that knows its own JSON pointers, and a reader of typed
// fields whose messages give file, pointer, what was found and what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "manifest/status.h"

namespace mla::json {

enum class Type : uint8_t { kNull, kBool, kInteger, kReal, kString, kArray, kObject };

struct Value {
  Type type = Type::kNull;
  bool boolean = false;
  uint32_t index = 0;     // place among the parent's children
  uint32_t children = 0;  // of an array or object
  int64_t integer = 0;    // kInteger; integers beyond int64 are kReal
  double real = 0;
  std::string_view text;  // kString
  std::string_view key;   // when the parent is an object
  const Value* parent = nullptr;
  Value* first = nullptr;
  Value* last = nullptr;
  Value* next = nullptr;

  // Member `name` of an object, null if there is none (or this is no object).
  const Value* find(std::string_view name) const;
  // "/kernels/3/launch"; "(top level)" for the root.
  std::string pointer() const;
  // "a string", "128", "\"abc\"": what a message calls this value.
  std::string describe() const;
};

// Parsed text. Values and their strings live as long as the document.
class Document {
 public:
  // Refuses what is not JSON (line and column are given), duplicate keys, nesting beyond 64 and more
  // than 524,288 values (a manifest of 500 kernels has about 30,000).
  // `file` is how messages call the text.
  static Status parse(std::string_view text, std::string_view file, Document* out);
  const Value& root() const { return values_.front(); }

 private:
  friend class Builder;
  std::deque<Value> values_;
  std::unique_ptr<char[]> arena_;
  size_t arena_used_ = 0;
};

// A word of a text field and the number that stands for it.
struct Word {
  std::string_view text;
  uint32_t number;
};

// Reads typed members. The first failure is kept in status(); every read returns whether the value
// was good, and reads nothing once a failure has been kept.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  // "<file>: <pointer>: <reason>"
  bool fail(const Value& at, const std::string& reason);
  // "<file>: <pointer>: got <value>; expected <expected>"
  bool mismatch(const Value& at, std::string_view expected);

  // Null (and a failure) when `name` is missing.
  const Value* member(const Value& object, std::string_view name, std::string_view expected);

  bool integer(const Value& object, std::string_view name, int64_t low, int64_t high, int64_t* out);
  template <typename T>
  bool integer(const Value& object, std::string_view name, int64_t low, int64_t high, T* out) {
    int64_t value = 0;
    if (!integer(object, name, low, high, &value)) return false;
    *out = static_cast<T>(value);
    return true;
  }
  bool boolean(const Value& object, std::string_view name, bool* out);
  // Text for which `valid` holds; `expected` describes such text.
  bool text(const Value& object, std::string_view name, bool (*valid)(std::string_view),
            std::string_view expected, std::string* out);
  bool word(const Value& object, std::string_view name, std::span<const Word> words, uint32_t* out);
  bool object(const Value& object, std::string_view name, const Value** out);
  bool array(const Value& object, std::string_view name, const Value** out);
  // For our own input: fails on the first member whose name is not in `names`.
  bool only(const Value& object, std::span<const std::string_view> names);

 private:
  std::string file_;
  Status status_;
};

// "a", "b" or "c"
std::string one_of(std::span<const Word> words);
// Text in quotes, as printable() of text.h.
std::string quote(std::string_view text);

}  // namespace mla::json

// SPDX-License-Identifier: Apache-2.0
#include "manifest/json.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "manifest/text.h"

namespace mla::json {

namespace {
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{1} << 19;
// Up to this many members, duplicates are found by comparing; beyond, by hashing.
constexpr uint32_t kLinearMembers = 24;

// "line 3, column 12" of the byte at `offset`.
std::string place(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}
}  // namespace

// Receives the parser's events and hangs the values into the document's tree.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(Document* document, std::string_view text, std::string_view file)
      : document_(document), text_(text), file_(file) {
    document_->values_.clear();
    // Decoded text is never longer than its source: the arena does not grow, so views into it stay.
    document_->arena_ = std::make_unique_for_overwrite<char[]>(text.size() + 1);
    document_->arena_used_ = 0;
  }

  Status status;

  bool null() override { return add() != nullptr; }
  bool boolean(bool value) override {
    Value* at = add(Type::kBool);
    if (at != nullptr) at->boolean = value;
    return at != nullptr;
  }
  bool number_integer(number_integer_t value) override {
    Value* at = add(Type::kInteger);
    if (at != nullptr) at->integer = value;
    return at != nullptr;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) {
      return number_float(static_cast<double>(value), {});
    }
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    Value* at = add(Type::kReal);
    if (at != nullptr) at->real = value;
    return at != nullptr;
  }
  bool string(string_t& value) override {
    Value* at = add(Type::kString);
    if (at != nullptr) at->text = keep(value);
    return at != nullptr;
  }
  bool binary(binary_t&) override { return false; }  // no event of JSON text

  bool start_object(std::size_t) override { return open(Type::kObject); }
  bool key(string_t& name) override {
    const Value& object = *open_.back();
    bool twice = false;
    if (object.children < kLinearMembers) {
      twice = object.find(name) != nullptr;
    } else {
      auto& seen = members_.back();
      if (seen.empty()) {
        for (const Value* child = object.first; child != nullptr; child = child->next)
          seen.insert(child->key);
      }
      twice = seen.count(name) != 0;
    }
    if (twice) {
      status = Status::invalid(file_ + ": " + object.pointer() + ": the key " + quote(name) +
                               " stands twice; expected once");
      return false;
    }
    key_ = keep(name);
    if (object.children >= kLinearMembers) members_.back().insert(key_);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Type::kArray); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text is "[json.exception...] parse error at line L, column C: <reason>" or
    // "[json.exception...] <reason>", and the reason may quote what was read.
    std::string_view reason = error.what();
    if (const size_t at = reason.find("] "); at != std::string_view::npos) reason.remove_prefix(at + 2);
    if (reason.starts_with("parse error")) {
      if (const size_t at = reason.find(": "); at != std::string_view::npos) reason.remove_prefix(at + 2);
    }
    constexpr size_t kMostOfAReason = 240;
    status = Status::invalid(file_ + ": " + place(text_, position > 0 ? position - 1 : 0) + ", in " +
                             (open_.empty() ? "(top level)" : open_.back()->pointer()) +
                             ": not JSON: " + safe_text(reason, kMostOfAReason));
    return false;
  }

 private:
  Value* add(Type type = Type::kNull) {
    if (document_->values_.size() == kMaxValues) {
      status = Status::invalid(file_ + ": " + open_.back()->pointer() + ": more than " +
                               std::to_string(kMaxValues) + " values");
      return nullptr;
    }
    Value& value = document_->values_.emplace_back();
    value.type = type;
    if (!open_.empty()) {
      Value& parent = *open_.back();
      value.parent = &parent;
      value.index = parent.children++;
      if (parent.type == Type::kObject) value.key = key_;
      (parent.last != nullptr ? parent.last->next : parent.first) = &value;
      parent.last = &value;
    }
    return &value;
  }
  bool open(Type type) {
    if (open_.size() >= kMaxDepth) {
      status = Status::invalid(file_ + ": " + open_.back()->pointer() + ": nested deeper than " +
                               std::to_string(kMaxDepth) + " levels");
      return false;
    }
    Value* at = add(type);
    if (at == nullptr) return false;
    open_.push_back(at);
    members_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    members_.pop_back();
    return true;
  }
  std::string_view keep(const std::string& text) {
    char* at = document_->arena_.get() + document_->arena_used_;
    std::memcpy(at, text.data(), text.size());
    document_->arena_used_ += text.size();
    return {at, text.size()};
  }

  Document* document_;
  std::string_view text_;
  std::string file_;
  std::vector<Value*> open_;
  std::vector<std::unordered_set<std::string_view>> members_;
  std::string_view key_;
};

Status Document::parse(std::string_view text, std::string_view file, Document* out) {
  // The parser takes a NUL for the end and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return Status::invalid(std::string(file) + ": " + place(text, nul) + ": not JSON: a NUL byte");
  }
  Builder builder(out, text, file);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return {};
  if (!builder.status.ok()) return builder.status;
  return Status::invalid(std::string(file) + ": not JSON");
}

const Value* Value::find(std::string_view name) const {
  if (type != Type::kObject) return nullptr;
  for (const Value* child = first; child != nullptr; child = child->next) {
    if (child->key == name) return child;
  }
  return nullptr;
}

std::string Value::pointer() const {
  if (parent == nullptr) return "(top level)";
  std::string part = "/";
  if (parent->type == Type::kArray) {
    part += std::to_string(index);
  } else {
    for (char c : printable(key)) {
      if (c == '~') {
        part += "~0";
      } else if (c == '/') {
        part += "~1";
      } else {
        part += c;
      }
    }
  }
  return parent->parent == nullptr ? part : parent->pointer() + part;
}

std::string Value::describe() const {
  switch (type) {
    case Type::kNull:
      return "null";
    case Type::kBool:
      return boolean ? "true" : "false";
    case Type::kInteger:
      return std::to_string(integer);
    case Type::kReal: {
      // Not printf, which follows the locale.
      char buffer[32];
      const auto end =
          std::to_chars(buffer, buffer + sizeof(buffer), real, std::chars_format::general, 10).ptr;
      std::string number(buffer, end);
      // 1.0 must not read as an integer.
      if (number.find_first_of(".en") == std::string::npos) number += ".0";
      return number;
    }
    case Type::kString:
      return quote(text);
    case Type::kArray:
      return "an array";
    case Type::kObject:
      return "an object";
  }
  return "nothing";
}

bool Reader::fail(const Value& at, const std::string& reason) {
  if (status_.ok()) status_ = Status::invalid(file_ + ": " + at.pointer() + ": " + reason);
  return false;
}

bool Reader::mismatch(const Value& at, std::string_view expected) {
  return fail(at, "got " + at.describe() + "; expected " + std::string(expected));
}

const Value* Reader::member(const Value& object, std::string_view name, std::string_view expected) {
  if (!ok()) return nullptr;
  if (object.type != Type::kObject) {
    mismatch(object, "an object");
    return nullptr;
  }
  const Value* value = object.find(name);
  if (value == nullptr) {
    fail(object, "\"" + std::string(name) + "\" is missing; expected " + std::string(expected));
  }
  return value;
}

bool Reader::integer(const Value& object, std::string_view name, int64_t low, int64_t high, int64_t* out) {
  const auto expected = [&] {
    return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  };
  if (!ok()) return false;
  const Value* value = object.find(name);
  if (value == nullptr) return member(object, name, expected()) != nullptr;
  if (value->type != Type::kInteger || value->integer < low || value->integer > high) {
    return mismatch(*value, expected());
  }
  *out = value->integer;
  return true;
}

bool Reader::boolean(const Value& object, std::string_view name, bool* out) {
  const Value* value = member(object, name, "true or false");
  if (value == nullptr) return false;
  if (value->type != Type::kBool) return mismatch(*value, "true or false");
  *out = value->boolean;
  return true;
}

bool Reader::text(const Value& object, std::string_view name, bool (*valid)(std::string_view),
                  std::string_view expected, std::string* out) {
  const Value* value = member(object, name, expected);
  if (value == nullptr) return false;
  if (value->type != Type::kString || !valid(value->text)) return mismatch(*value, expected);
  *out = value->text;
  return true;
}

bool Reader::word(const Value& object, std::string_view name, std::span<const Word> words, uint32_t* out) {
  if (!ok()) return false;
  const Value* value = object.find(name);
  if (value == nullptr) return member(object, name, one_of(words)) != nullptr;
  if (value->type == Type::kString) {
    for (const Word& word : words) {
      if (word.text == value->text) {
        *out = word.number;
        return true;
      }
    }
  }
  return mismatch(*value, one_of(words));
}

bool Reader::object(const Value& object, std::string_view name, const Value** out) {
  const Value* value = member(object, name, "an object");
  if (value == nullptr) return false;
  if (value->type != Type::kObject) return mismatch(*value, "an object");
  *out = value;
  return true;
}

bool Reader::array(const Value& object, std::string_view name, const Value** out) {
  const Value* value = member(object, name, "an array");
  if (value == nullptr) return false;
  if (value->type != Type::kArray) return mismatch(*value, "an array");
  *out = value;
  return true;
}

bool Reader::only(const Value& object, std::span<const std::string_view> names) {
  if (!ok()) return false;
  if (object.type != Type::kObject) return mismatch(object, "an object");
  for (const Value* child = object.first; child != nullptr; child = child->next) {
    if (std::find(names.begin(), names.end(), child->key) != names.end()) continue;
    std::string known;
    for (std::string_view name : names) known += (known.empty() ? "" : ", ") + std::string(name);
    return fail(object, "unknown key " + quote(child->key) + "; expected only " + known);
  }
  return true;
}

std::string one_of(std::span<const Word> words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i != 0) text += i + 1 == words.size() ? " or " : ", ";
    text += quote(words[i].text);
  }
  return text;
}

std::string quote(std::string_view text) { return "\"" + printable(text) + "\""; }

}  // namespace mla::json

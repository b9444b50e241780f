// SPDX-License-Identifier: Apache-2.0
//
// Characters, names and literals of a PTX text.
#include <bit>
#include <cctype>
#include <charconv>

#include "tests/emulator/engine/parse/reader.h"

namespace mla::emu {

namespace {

constexpr TypeInfo kTypes[] = {
    {"pred", 1, RegClass::kPred}, {"b8", 1, RegClass::k8},      {"u8", 1, RegClass::k8},
    {"s8", 1, RegClass::k8},      {"b16", 2, RegClass::k16},    {"u16", 2, RegClass::k16},
    {"s16", 2, RegClass::k16},    {"f16", 2, RegClass::k16},    {"bf16", 2, RegClass::k16},
    {"b32", 4, RegClass::k32},    {"u32", 4, RegClass::k32},    {"s32", 4, RegClass::k32},
    {"f32", 4, RegClass::k32},    {"f16x2", 4, RegClass::k32},  {"bf16x2", 4, RegClass::k32},
    {"b64", 8, RegClass::k64},    {"u64", 8, RegClass::k64},    {"s64", 8, RegClass::k64},
    {"f64", 8, RegClass::k64},    {"b128", 16, RegClass::k128},
};

// <cctype> asks the locale; PTX does not.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || c == '\0'; }

}  // namespace

const TypeInfo* find_type(std::string_view name) {
  for (const TypeInfo& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

bool word_start(char c) { return is_letter(c) || c == '_' || c == '$' || c == '%'; }
bool word_char(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '$'; }

std::string shown(std::string_view text, size_t most) {
  std::string result(text.substr(0, most));
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > most ? result + "..." : result;
}

void Reader::fail(std::string message) const { throw SyntaxError{line_, std::move(message)}; }
void Reader::fail_here(std::string message) const { throw SyntaxError{token_line_, std::move(message)}; }

void Reader::skip() {
  token_line_ = line_;
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (is_space(c)) {
      ++position_;
    } else if (c == '/' && peek(1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
    } else if (c == '/' && peek(1) == '*') {
      const size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) fail("comment without end");
      for (; position_ < end + 2; ++position_) line_ += text_[position_] == '\n';
    } else {
      break;
    }
  }
}

bool Reader::accept(char c) {
  if (peek() != c) return false;
  ++position_;
  skip();
  return true;
}

void Reader::expect(char c) {
  if (!accept(c)) fail(std::string("expected '") + c + "', found " + found());
}

std::string Reader::found() const {
  if (position_ >= text_.size()) return "the end of the text";
  const std::string_view line = text_.substr(position_, 24);
  return "'" + shown(line.substr(0, line.find('\n'))) + "'";
}

std::string Reader::word() {
  if (!word_start(peek())) fail("expected a name, found " + found());
  const size_t start = position_++;
  while (word_char(peek())) ++position_;
  std::string result(text_.substr(start, position_ - start));
  skip();
  return result;
}

std::string Reader::dot_word() {
  if (peek() != '.') return "";
  ++position_;
  const size_t start = position_;
  while (word_char(peek()) || (peek() == ':' && peek(1) == ':')) position_ += peek() == ':' ? 2 : 1;
  std::string result(text_.substr(start, position_ - start));
  if (result.empty()) fail("expected a directive after '.'");
  skip();
  return result;
}

bool Reader::at_number() const { return is_digit(peek()) || (peek() == '-' && is_digit(peek(1))); }

Operand Reader::number() {
  Operand operand;
  bool negative = false;
  while (peek() == '-' || peek() == '+') {
    negative ^= peek() == '-';
    ++position_;
    skip();
  }
  if (!is_digit(peek())) fail("expected a number, found " + found());
  const size_t start = position_;
  const char kind = peek(1);
  if (peek() == '0' && (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D')) {
    const bool single = kind == 'f' || kind == 'F';
    const size_t digits = single ? 8 : 16;
    position_ += 2;
    for (size_t i = 0; i < digits; ++i) {
      if (!is_hex(peek(i))) fail("a hexadecimal float needs " + std::to_string(digits) + " digits");
    }
    uint64_t bits = 0;
    std::from_chars(text_.data() + position_, text_.data() + position_ + digits, bits, 16);
    position_ += digits;
    if (negative) bits ^= single ? uint64_t{1} << 31 : uint64_t{1} << 63;
    operand.kind = Operand::kFloat;
    operand.single = single;
    operand.value = static_cast<int64_t>(bits);
    skip();
    return operand;
  }
  const bool hex = peek() == '0' && (kind == 'x' || kind == 'X');
  const bool binary = peek() == '0' && (kind == 'b' || kind == 'B');
  bool is_float = false;
  if (hex) position_ += 2;
  while (is_digit(peek()) || is_letter(peek()) || (!hex && peek() == '.') ||
         (!hex && (peek() == '-' || peek() == '+') &&
          (text_[position_ - 1] == 'e' || text_[position_ - 1] == 'E'))) {
    if (!hex && !binary && (peek() == '.' || peek() == 'e' || peek() == 'E')) is_float = true;
    ++position_;
  }
  const std::string_view literal = text_.substr(start, position_ - start);
  const char* const end = literal.data() + literal.size();
  std::from_chars_result result;
  if (is_float) {
    double value = 0;
    result = std::from_chars(literal.data(), end, value);
    operand.kind = Operand::kFloat;
    operand.value = std::bit_cast<int64_t>(negative ? -value : value);
  } else {
    const bool octal = !hex && !binary && literal.size() > 1 && literal[0] == '0' && is_digit(literal[1]);
    uint64_t value = 0;
    result = std::from_chars(literal.data() + (hex || binary ? 2 : 0), end, value,
                             hex      ? 16
                             : binary ? 2
                             : octal  ? 8
                                      : 10);
    if (result.ec == std::errc() && end - result.ptr == 1 && (*result.ptr == 'U' || *result.ptr == 'u'))
      ++result.ptr;
    operand.value = static_cast<int64_t>(negative ? 0 - value : value);
  }
  if (result.ec == std::errc::result_out_of_range) {
    fail("the number " + shown(literal) + (is_float ? " is out of range" : " does not fit into 64 bits"));
  }
  if (result.ec != std::errc() || result.ptr != end) fail("'" + shown(literal) + "' is no number");
  skip();
  return operand;
}

int64_t Reader::integer() {
  const Operand operand = number();
  if (operand.kind != Operand::kInt) fail("expected an integer");
  return operand.value;
}

int64_t Reader::integer_in(const char* what, int64_t least, int64_t most) {
  const int64_t value = integer();
  if (value < least || value > most) {
    fail_here(std::string(what) + " is " + std::to_string(value) + ", allowed are " + std::to_string(least) +
              " to " + std::to_string(most));
  }
  return value;
}

std::string Reader::quoted() {
  if (peek() != '"') fail("expected a string, found " + found());
  const size_t end = text_.find('"', position_ + 1);
  if (end == std::string_view::npos) fail("string without end");
  std::string result(text_.substr(position_ + 1, end - position_ - 1));
  for (const char c : result) line_ += c == '\n';
  position_ = end + 1;
  skip();
  return result;
}

void Reader::skip_braces() {
  expect('{');
  uint64_t depth = 1;
  while (depth) {
    if (position_ >= text_.size()) fail("'{' without '}'");
    if (peek() == '"') {
      quoted();
      continue;
    }
    if (peek() == '{') ++depth;
    if (peek() == '}') --depth;
    ++position_;
    skip();
  }
}

void Reader::skip_to_semicolon() {
  while (peek() != ';') {
    if (position_ >= text_.size()) fail("statement without ';'");
    if (peek() == '"') {
      quoted();
      continue;
    }
    ++position_;
    skip();
  }
  expect(';');
}

void Reader::skip_parens() {
  expect('(');
  uint64_t depth = 1;
  while (depth) {
    if (position_ >= text_.size()) fail("'(' without ')'");
    if (peek() == '(') ++depth;
    if (peek() == ')') --depth;
    ++position_;
    skip();
  }
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// Instructions, their operands, and labels.
#include <algorithm>
#include <iterator>

#include "tests/emulator/engine/parse/reader.h"

namespace mla::emu {

namespace {

constexpr const char* kSpecials[] = {
    "%tid",
    "%ntid",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%ctaid",
    "%nctaid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%is_explicit_cluster",
    "%clusterid",
    "%nclusterid",
    "%cluster_ctaid",
    "%cluster_nctaid",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
    "%clock_hi",
    "%clock64",
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%current_graph_exec",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
};

bool is_special(const std::string& name) {
  if (name.rfind("%envreg", 0) == 0) return true;
  return std::find_if(std::begin(kSpecials), std::end(kSpecials),
                      [&](const char* special) { return name == special; }) != std::end(kSpecials);
}

}  // namespace

Operand Reader::name_operand() {
  Operand operand;
  std::string name = word();
  if (name == "_") {
    operand.kind = Operand::kSink;
    return operand;
  }
  const int32_t reg = find_register(name);
  if (reg >= 0) {
    operand.kind = Operand::kReg;
    operand.reg = reg;
    if (peek() == '.') fail("vector register elements (" + shown(name) + ".x) are not supported");
    return operand;
  }
  if (name[0] == '%') {
    if (!is_special(name)) fail_here("register " + shown(name) + " is not declared");
    operand.kind = Operand::kSpecial;
    operand.text = name;
    if (peek() == '.') operand.text += "." + dot_word();
    return operand;
  }
  if (name == "WARP_SZ") {
    operand.value = 32;
    return operand;
  }
  if (const Symbol* symbol = find_symbol(name)) {
    operand.kind = Operand::kSymbol;
    operand.symbol = symbol;
    operand.text = name;
    if (peek() == '+' || (peek() == '-' && peek(1) >= '0' && peek(1) <= '9')) {
      const bool minus = peek() == '-';
      ++position_;
      skip();
      const uint64_t value = static_cast<uint64_t>(integer());
      operand.value = static_cast<int64_t>(minus ? 0 - value : value);
    }
    return operand;
  }
  operand.kind = Operand::kName;
  operand.text = name;
  return operand;
}

// After '['.
Operand Reader::address_operand(uint32_t depth) {
  Operand result;
  result.kind = Operand::kAddress;
  if (at_number()) {
    result.value = integer();
  } else {
    Operand base = name_operand();
    result.value = base.kind == Operand::kSymbol ? base.value : 0;
    base.value = 0;
    result.parts.push_back(std::move(base));
    if (peek() == '+' || peek() == '-') {
      const bool minus = peek() == '-';
      ++position_;
      skip();
      const uint64_t value = static_cast<uint64_t>(integer());
      result.value = static_cast<int64_t>(static_cast<uint64_t>(result.value) + (minus ? 0 - value : value));
    }
  }
  while (accept(',')) result.parts.push_back(operand(depth + 1));
  expect(']');
  return result;
}

Operand Reader::operand(uint32_t depth) {
  if (depth > limits::kNesting) fail("operands are nested deeper than " + std::to_string(limits::kNesting));
  Operand result;
  if (peek() == '{' || peek() == '(') {
    const char close = peek() == '{' ? '}' : ')';
    result.kind = peek() == '{' ? Operand::kVector : Operand::kTuple;
    ++position_;
    skip();
    while (!accept(close)) {
      result.parts.push_back(operand(depth + 1));
      if (!accept(',') && peek() != close)
        fail(std::string("expected ',' or '") + close + "', found " + found());
    }
    return result;
  }
  if (accept('[')) return address_operand(depth);
  if (accept('!')) {
    result = name_operand();
    if (result.kind != Operand::kReg) fail("'!' needs a predicate register");
    result.negated = true;
  } else if (word_start(peek())) {
    result = name_operand();
  } else if (at_number() || peek() == '-' || peek() == '+') {
    result = number();
  } else {
    fail("expected an operand, found " + found());
  }
  if (accept('|')) {
    Operand pair;
    pair.kind = Operand::kPair;
    pair.parts.push_back(std::move(result));
    pair.parts.push_back(name_operand());
    return pair;
  }
  return result;
}

bool Reader::branch_targets(Function* f, const std::string& name, uint32_t line) {
  if (peek() != '.') return false;
  const size_t position = position_;
  const uint32_t line_before = line_;
  const std::string directive = dot_word();
  if (directive == "callprototype") fail("indirect calls are not supported");
  if (directive != "branchtargets") {
    position_ = position;
    line_ = line_before;
    return false;
  }
  std::vector<std::string> names;
  do {
    names.push_back(word());
  } while (accept(','));
  expect(';');
  for (size_t i = 0; i < names.size(); ++i)
    scopes_.back().pending.push_back({names[i], std::string::npos, i, name, line});
  f->branch_targets[name] = std::move(names);
  return true;
}

void Reader::instruction_or_label(Function* f, uint32_t loc) {
  Statement statement;
  statement.line = line_;
  statement.loc = loc;
  if (accept('@')) {
    statement.guard_negated = accept('!');
    const std::string name = word();
    statement.guard = find_register(name);
    if (statement.guard < 0) fail_here("guard " + shown(name) + " is not declared");
  }
  if (!word_start(peek())) fail("expected an instruction, found " + found());
  const size_t start = position_;
  while (word_char(peek()) || peek() == '$' || peek() == '%') ++position_;
  const std::string first(text_.substr(start, position_ - start));
  if (peek() == ':' && peek(1) != ':') {  // a label
    ++position_;
    skip();
    if (branch_targets(f, first, statement.line)) return;
    Scope& scope = scopes_.back();
    if (!scope.labels.emplace(first, 0).second) fail_here("label " + shown(first) + " is defined twice");
    f->labels[first + "@" + std::to_string(scope.id)] = static_cast<uint32_t>(f->statements.size());
    return;
  }
  while (word_char(peek()) || peek() == '.' || peek() == ':') ++position_;
  statement.op_text = std::string(text_.substr(start, position_ - start));
  if (statement.op_text.size() > 200) fail("instruction " + shown(statement.op_text) + " is too long");
  skip();
  size_t begin = 0;
  while (begin <= statement.op_text.size()) {
    size_t end = statement.op_text.find('.', begin);
    if (end == std::string::npos) end = statement.op_text.size();
    statement.op.push_back(statement.op_text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (peek() != ';') {
    do {
      statement.operands.push_back(operand());
    } while (accept(','));
  }
  expect(';');
  for (size_t i = 0; i < statement.operands.size(); ++i) {
    if (statement.operands[i].kind == Operand::kName) {
      scopes_.back().pending.push_back(
          {statement.operands[i].text, f->statements.size(), i, "", statement.line});
    }
  }
  f->statements.push_back(std::move(statement));
}

}  // namespace mla::emu

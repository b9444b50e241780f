// SPDX-License-Identifier: Apache-2.0
//
// A kernel and the functions that it calls, as one flat list of instructions.
#include <algorithm>

#include "tests/emulator/engine/decode/flow.h"
#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

constexpr size_t kMostCallDepth = 1000;
constexpr size_t kMostProblems = 100;
constexpr uint64_t kMostThreadBytes = 1 << 20;  // of local memory, or of .param space
constexpr size_t kMostText = 200;               // of a statement, in a message

Next do_nothing(Machine&, const Instr&, uint32_t) { return Next::kNext; }

class ProgramBuilder {
 public:
  ProgramBuilder(const ModuleImpl& module, Program& program) : module_(module), program_(program) {}

  void build(const Function& kernel) {
    program_.module = &module_;
    program_.kernel = &kernel;
    program_.static_shared = kernel.info.static_shared_bytes;
    uint32_t alignment = 16;
    for (const auto& symbol : module_.symbols) {
      if (symbol->dynamic) alignment = std::max(alignment, symbol->alignment);
    }
    program_.dynamic_base = (kSharedBegin + program_.static_shared + alignment - 1) / alignment * alignment;
    collect(kernel);
    uint64_t local_bytes = 0, frame_bytes = 0;
    for (const Function* function : program_.functions) {
      local_bytes += (function->local_bytes + 15) / 16 * 16;
      frame_bytes += (function->param_bytes + 15) / 16 * 16;
    }
    if (local_bytes > kMostThreadBytes || frame_bytes > kMostThreadBytes) {
      problem(kernel.line, "the functions of kernel " + kernel.name + " take more than the " +
                               std::to_string(kMostThreadBytes) + " bytes a thread that are supported");
      return;
    }
    program_.local_bytes = static_cast<uint32_t>(local_bytes);
    std::vector<Draft> drafts;
    for (const Function* function : program_.functions) drafts.push_back(draft(*function));
    for (Draft& d : drafts) {
      const FlowGraph graph(d);
      find_reconvergence(graph, &d);
      if (!place_registers(graph, &d, &program_.register_bytes))
        problem(d.function->line, "function " + d.function->name + " is too large for the emulator");
    }
    link(drafts);
    if (problems_ > kMostProblems)
      program_.unsupported.push_back("and " + std::to_string(problems_ - kMostProblems) + " more");
  }

 private:
  void problem(uint32_t line, const std::string& message) {
    if (++problems_ > kMostProblems) return;
    program_.unsupported.push_back(module_.name + ":" + std::to_string(line) + ": " + message);
  }

  void unsupported(const Statement& s, std::string message) {
    if (message.size() > kMostText) message = message.substr(0, kMostText) + "...";
    problem(s.line, message + ": '" + trimmed(s.line) + "'");
  }

  std::string trimmed(uint32_t line) const {
    if (line == 0 || line > module_.lines.size()) return "";
    const std::string& text = module_.lines[line - 1];
    size_t a = text.find_first_not_of(" \t"), b = text.find_last_not_of(" \t\r");
    if (a == std::string::npos) return "";
    return b - a < kMostText ? text.substr(a, b - a + 1) : text.substr(a, kMostText) + "...";
  }

  // The functions that are called, callers first.
  void collect(const Function& f) {
    if (std::find(stack_.begin(), stack_.end(), &f) != stack_.end()) {
      problem(f.line, "recursive calls (" + f.name + ") are not supported");
      return;
    }
    if (!collected_.insert(&f).second) return;
    if (stack_.size() >= kMostCallDepth) {
      problem(f.line, "calls nested deeper than " + std::to_string(kMostCallDepth) + " are not supported");
      return;
    }
    program_.functions.push_back(&f);
    stack_.push_back(&f);
    for (const Statement& s : f.statements) {
      if (s.op[0] != "call") continue;
      for (const Operand& o : s.operands) {
        if (o.kind != Operand::kName) continue;
        auto found = module_.function_names.find(o.text);
        if (found != module_.function_names.end() && found->second->defined) collect(*found->second);
      }
    }
    stack_.pop_back();
  }

  Draft draft(const Function& f) {
    Draft d;
    d.function = &f;
    d.frame_base = program_.frame_base(&f);
    program_.frame_bytes = std::max(program_.frame_bytes, d.frame_base + (f.param_bytes + 15) / 16 * 16);
    const uint32_t index = program_.function_index(&f);
    for (const Statement& s : f.statements) {
      d.at.push_back(static_cast<uint32_t>(d.code.size()));
      Decoder decoder(program_, f, s, d.frame_base);
      try {
        if (s.guard >= 0) {
          Operand guard;
          guard.kind = Operand::kReg;
          guard.reg = s.guard;
          guard.negated = s.guard_negated;
          decoder.in.guard = decoder.src_pred(guard);
        }
        decode_instruction(decoder);
      } catch (const Unsupported& reason) {
        unsupported(s, reason.message);
        decoder.in.fn = do_nothing;
        decoder.in.flow = Flow::kNext;
        decoder.label.clear();
        decoder.labels.clear();
        decoder.after = nullptr;
      }
      push(d, decoder, index);
      if (decoder.after) {
        Decoder after(program_, f, s, d.frame_base);
        after.in.guard = decoder.in.guard;
        after.uses = decoder.uses;
        after.in.fn = decoder.after;
        after.in.p = decoder.in.p;
        push(d, after, index);
      }
    }
    d.at.push_back(static_cast<uint32_t>(d.code.size()));
    Statement end;
    end.op = {"ret"};
    end.op_text = "ret";
    end.line = f.statements.empty() ? f.line : f.statements.back().line;
    Decoder decoder(program_, f, end, d.frame_base);
    decode_instruction(decoder);
    push(d, decoder, index);
    // Labels to indices.
    d.more_targets.resize(d.code.size());
    for (size_t i = 0; i < d.code.size(); ++i) {
      if (!d.target_label[i].empty()) d.code[i].target = d.at[f.labels.at(d.target_label[i])];
      if (d.more_labels[i].empty()) continue;
      for (const std::string& label : d.more_labels[i]) d.more_targets[i].push_back(d.at[f.labels.at(label)]);
      program_.tables.push_back(std::make_unique<std::vector<uint32_t>>(d.more_targets[i]));
      d.code[i].p = program_.tables.back()->data();
      branch_tables_.push_back({program_.tables.back().get(), &f});
    }
    return d;
  }

  void push(Draft& d, Decoder& decoder, uint32_t index) {
    Instr in = decoder.in;
    in.line = decoder.s.line;
    in.loc = decoder.s.loc;
    in.function = index;
    auto [found, added] =
        opcode_index_.try_emplace(decoder.s.op_text, static_cast<uint32_t>(program_.opcodes.size()));
    if (added) program_.opcodes.push_back(decoder.s.op_text);
    in.opcode = found->second;
    d.code.push_back(in);
    d.defs.push_back(std::move(decoder.defs));
    d.uses.push_back(std::move(decoder.uses));
    d.target_label.push_back(std::move(decoder.label));
    d.more_labels.push_back(std::move(decoder.labels));
  }

  // One function behind the other: indices within a function become indices in the program.
  void link(const std::vector<Draft>& drafts) {
    uint32_t base = 0;
    std::map<const Function*, uint32_t> starts;
    for (const Draft& d : drafts) {
      starts[d.function] = base;
      base += static_cast<uint32_t>(d.code.size());
    }
    for (const Draft& d : drafts) {
      const uint32_t start = starts[d.function];
      for (size_t i = 0; i < d.code.size(); ++i) {
        Instr in = d.code[i];
        if (in.flow == Flow::kCall) {
          in.target = starts[program_.functions[in.target]];
        } else if (!d.target_label[i].empty()) {
          in.target += start;
        }
        if (in.reconverge != kNowhere) in.reconverge += start;
        program_.code.push_back(in);
      }
    }
    for (auto& [table, function] : branch_tables_) {
      for (uint32_t& target : *table) target += starts[function];
    }
  }

  const ModuleImpl& module_;
  Program& program_;
  std::vector<const Function*> stack_;
  std::set<const Function*> collected_;
  std::map<std::string, uint32_t> opcode_index_;
  std::vector<std::pair<std::vector<uint32_t>*, const Function*>> branch_tables_;
  size_t problems_ = 0;
};

}  // namespace

uint32_t Program::function_index(const Function* f) const {
  return static_cast<uint32_t>(std::find(functions.begin(), functions.end(), f) - functions.begin());
}

uint32_t Program::frame_base(const Function* f) const {
  uint32_t base = 0;
  for (const Function* other : functions) {
    if (other == f) return base;
    base += (other->param_bytes + 15) / 16 * 16;
  }
  return base;
}

std::shared_ptr<Program> decode(const ModuleImpl& module, const Function& kernel) {
  auto program = std::make_shared<Program>();
  ProgramBuilder(module, *program).build(kernel);
  return program;
}

}  // namespace mla::emu

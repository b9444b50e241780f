// SPDX-License-Identifier: Apache-2.0
//
// Branches, calls, exits.
#include <cstring>

#include "tests/emulator/engine/decode/table.h"
#include "tests/emulator/engine/instructions/runtime.h"

namespace mla::emu {

namespace {

Next do_bra(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  if (mask == g.mask) {
    g.pc = in.target;
    return Next::kJump;
  }
  m.diverge(mask, in.target, g.pc + 1, in.reconverge);
  return Next::kJump;
}

// a[0]: number of targets; p: their pcs; o[1]: index.
Next do_brx(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  const uint32_t* index = lanes<uint32_t>(m, in.o[1]);
  const uint32_t* targets = static_cast<const uint32_t*>(in.p);
  uint32_t rest = g.mask & ~mask;
  if (rest) {  // lanes whose guard is false go on behind
    m.diverge(mask, g.pc, g.pc + 1, in.reconverge);
    return Next::kJump;
  }
  uint32_t first = index[__builtin_ctz(mask)];
  uint32_t same = 0;
  MLA_FOR_LANES(lane, mask) {
    if (index[lane] >= in.a[0]) {
      return m.fault(FaultKind::kInstruction, static_cast<int>(lane), "brx.idx with index %u of %u targets",
                     index[lane], in.a[0]);
    }
    if (index[lane] == first) same |= 1u << lane;
  }
  if (same == mask) {
    g.pc = targets[first];
    return Next::kJump;
  }
  // The others execute this instruction again.
  m.diverge(same, targets[first], g.pc, in.reconverge);
  return Next::kJump;
}

Next do_exit(Machine& m, const Instr&, uint32_t mask) { return m.exit_lanes(mask); }

Next do_ret(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  if (g.calls.empty()) return m.exit_lanes(mask);
  if (mask != g.mask) {
    m.diverge(mask, g.pc, g.pc + 1, in.reconverge);
    return Next::kJump;
  }
  g.pc = g.calls.back();
  g.calls.pop_back();
  return Next::kJump;
}

struct CallCopy {
  uint32_t from, to, bytes;
};

struct CallTable {
  std::vector<CallCopy> in, out;
};

Next copy_frame(Machine& m, const std::vector<CallCopy>& copies, uint32_t mask) {
  for (const CallCopy& copy : copies) {
    MLA_FOR_LANES(lane, mask) {
      uint8_t* frame = m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
      std::memmove(frame + copy.to, frame + copy.from, copy.bytes);
    }
  }
  return Next::kNext;
}

Next do_call(Machine& m, const Instr& in, uint32_t mask) {
  Group& g = *m.group;
  if (mask != g.mask) {
    m.diverge(mask, g.pc, g.pc + 1, g.pc + 1);
    return Next::kJump;
  }
  copy_frame(m, static_cast<const CallTable*>(in.p)->in, mask);
  g.calls.push_back(g.pc + 1);
  g.pc = in.target;
  return Next::kJump;
}

// Follows a call: results back into the caller's .param variables.
Next do_after_call(Machine& m, const Instr& in, uint32_t mask) {
  return copy_frame(m, static_cast<const CallTable*>(in.p)->out, mask);
}

Next do_trap(Machine& m, const Instr& in, uint32_t mask) {
  return m.fault(FaultKind::kTrap, __builtin_ctz(mask), "%s", in.a[0] ? "brkpt executed" : "trap executed");
}

void decode_bra(Decoder& d) {
  d.mod("uni");
  d.need(1);
  if (d.operand(0).kind != Operand::kName) d.fail("bra needs a label");
  if (!d.function().labels.count(d.operand(0).text)) d.fail("label " + d.operand(0).text + " is not defined");
  d.in.fn = do_bra;
  d.in.flow = Flow::kBranch;
  d.label = d.operand(0).text;
}

void decode_brx(Decoder& d) {
  if (!d.mod("idx")) d.fail("only brx.idx is supported");
  d.mod("uni");
  d.need(2);
  d.in.o[1] = d.src(0, T::kU32);
  const std::string& list = d.operand(1).text;
  const auto& lists = d.function().branch_targets;
  const auto found = lists.find(list.substr(0, list.find('@')));
  if (found == lists.end()) d.fail("branch target list " + list + " is not defined");
  for (const std::string& label : found->second) {
    if (!d.function().labels.count(label)) d.fail("label " + label + " is not defined");
  }
  d.in.fn = do_brx;
  d.in.flow = Flow::kBranchTable;
  d.in.a[0] = static_cast<uint32_t>(found->second.size());
  d.labels = found->second;
}

void decode_exit(Decoder& d) {
  d.need(0);
  d.in.fn = do_exit;
  d.in.flow = Flow::kEnd;
}

void decode_ret(Decoder& d) {
  d.mod("uni");
  d.need(0);
  const bool entry = d.function().entry;
  d.in.fn = entry ? do_exit : do_ret;
  d.in.flow = entry ? Flow::kEnd : Flow::kReturn;
}

void decode_trap(Decoder& d) {
  d.need(0);
  d.in.fn = do_trap;
  d.in.flow = Flow::kEnd;
  d.in.a[0] = d.name() == "brkpt";
}

void decode_call(Decoder& d) {
  Program& program = d.program();
  const ModuleImpl& module = *program.module;
  d.mod("uni");
  d.finish();
  size_t at = 0;
  std::vector<Operand> results, arguments;
  if (at < d.count() && d.operand(at).kind == Operand::kTuple) results = d.operand(at++).parts;
  if (at >= d.count() || d.operand(at).kind != Operand::kName) d.fail("indirect calls are not supported");
  std::string callee_name = d.operand(at++).text;
  if (at < d.count() && d.operand(at).kind == Operand::kTuple) arguments = d.operand(at++).parts;
  if (at != d.count()) d.fail("indirect calls are not supported");
  auto offset = [&](const Operand& o) {
    if (o.kind != Operand::kSymbol || o.symbol->space != Space::kParam)
      d.fail("call operands must be .param variables");
    return static_cast<uint32_t>(o.symbol->offset) + d.frame_base();
  };
  if (callee_name == "vprintf") {
    if (arguments.size() != 2 || results.size() != 1) d.fail("vprintf takes two arguments");
    d.in.fn = do_vprintf;
    d.in.a[0] = offset(arguments[0]);
    d.in.a[1] = offset(arguments[1]);
    d.in.a[2] = offset(results[0]);
    return;
  }
  if (callee_name == "__assertfail") {
    if (arguments.size() != 5) d.fail("__assertfail takes five arguments");
    d.in.fn = do_assertfail;
    d.in.flow = Flow::kEnd;
    for (int i = 0; i < 4; ++i) d.in.a[i] = offset(arguments[static_cast<size_t>(i)]);
    return;
  }
  auto found = module.function_names.find(callee_name);
  if (found == module.function_names.end() || !found->second->defined) {
    d.fail("function " + callee_name + " has no body in this module");
  }
  const Function* callee = found->second;
  const uint32_t index = program.function_index(callee);
  if (index == program.functions.size()) d.fail("the call of " + callee_name + " is not supported");
  if (callee->params.size() != arguments.size() || callee->returns.size() != results.size()) {
    d.fail("call of " + callee_name + " with another number of operands than it declares");
  }
  uint32_t callee_base = program.frame_base(callee);
  auto table = std::make_shared<CallTable>();
  for (size_t i = 0; i < arguments.size(); ++i) {
    table->in.push_back({offset(arguments[i]), static_cast<uint32_t>(callee->params[i]->offset) + callee_base,
                         static_cast<uint32_t>(callee->params[i]->bytes)});
  }
  for (size_t i = 0; i < results.size(); ++i) {
    table->out.push_back({static_cast<uint32_t>(callee->returns[i]->offset) + callee_base, offset(results[i]),
                          static_cast<uint32_t>(callee->returns[i]->bytes)});
  }
  d.in.fn = do_call;
  d.in.flow = Flow::kCall;
  d.in.target = index;
  d.in.p = table.get();
  d.after = do_after_call;
  program.call_tables.push_back(std::move(table));
}

}  // namespace

void add_control_instructions(InstructionTable* table) {
  InstructionTable& t = *table;
  t["bra"] = decode_bra;
  t["brx"] = decode_brx;
  t["exit"] = decode_exit;
  t["ret"] = decode_ret;
  t["trap"] = t["brkpt"] = decode_trap;
  t["call"] = decode_call;
}

}  // namespace mla::emu

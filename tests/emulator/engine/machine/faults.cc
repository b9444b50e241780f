// SPDX-License-Identifier: Apache-2.0
//
// Faults, deadlocks, and the sentences about them.
#include "tests/emulator/engine/machine.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

namespace {

std::string trim(const std::string& text) {
  size_t a = text.find_first_not_of(" \t"), b = text.find_last_not_of(" \t\r");
  return a == std::string::npos ? "" : text.substr(a, b - a + 1);
}

std::string source_of(const Program& program, const Instr& in) {
  const Function& f = *program.functions[in.function];
  const Loc& loc = f.locs[in.loc];
  auto file = program.module->files.find(loc.file);
  if (loc.line == 0 || file == program.module->files.end()) return "";
  return file->second + ":" + std::to_string(loc.line);
}

}  // namespace

const char* fault_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return "no fault";
    case FaultKind::kLaunch:
      return "invalid launch";
    case FaultKind::kUnsupported:
      return "unsupported instruction";
    case FaultKind::kOutOfBounds:
      return "out of bounds";
    case FaultKind::kMisaligned:
      return "misaligned address";
    case FaultKind::kUnwritten:
      return "read of unwritten memory";
    case FaultKind::kRace:
      return "race";
    case FaultKind::kProxy:
      return "missing proxy fence";
    case FaultKind::kBarrier:
      return "barrier misuse";
    case FaultKind::kClusterExit:
      return "shared memory of an exited CTA";
    case FaultKind::kRegisters:
      return "register pool";
    case FaultKind::kDivergence:
      return "divergence";
    case FaultKind::kDeadlock:
      return "deadlock";
    case FaultKind::kBudget:
      return "instruction budget";
    case FaultKind::kTrap:
      return "trap";
    case FaultKind::kTensorMap:
      return "tensor map";
    case FaultKind::kInstruction:
      return "instruction misuse";
  }
  return "?";
}

std::string Fault::text() const {
  if (kind == FaultKind::kNone) return "no fault";
  std::string result = text_of("%s in kernel %s", fault_name(kind), kernel.c_str());
  if (cta_rank >= 0) {
    result += text_of(", CTA (%u, %u, %u), cluster rank %d", cta.x, cta.y, cta.z, cta_rank);
  }
  if (warp >= 0) result += text_of(", warp %d", warp);
  if (lane >= 0) result += text_of(", lane %d", lane);
  if (ptx_line) result += text_of(", PTX line %u '%s'", ptx_line, ptx_text.c_str());
  if (!source.empty()) result += ", " + source;
  return result + ": " + message;
}

namespace {

Fault make_fault(const Program& program, FaultKind kind, const Warp* w, const Instr* in, int lane,
                 const std::string& text) {
  Fault f;
  f.kind = kind;
  f.kernel = program.kernel->name;
  f.message = text;
  f.lane = lane;
  if (w) {
    f.cta = w->cta->id;
    f.cta_rank = static_cast<int32_t>(w->cta->rank);
    f.warp = static_cast<int32_t>(w->index);
  }
  if (in) {
    f.ptx_line = in->line;
    if (in->line && in->line <= program.module->lines.size())
      f.ptx_text = trim(program.module->lines[in->line - 1]);
    f.source = source_of(program, *in);
  }
  return f;
}

}  // namespace

void Machine::fault_at(FaultKind kind, const Warp* w, const Instr* in, int lane, const std::string& text) {
  if (failed) return;
  failed = true;
  report->fault = make_fault(*program, kind, w, in, lane, text);
}

bool Machine::finding_at(Check check, FaultKind kind, const Warp* w, const Instr* in, int lane,
                         const std::string& text) {
  const CheckMode mode = config->checks[check];
  if (mode == CheckMode::kOff) return true;
  if (mode == CheckMode::kFault) {
    fault_at(kind, w, in, lane, text);
    return false;
  }
  const uint32_t line = in ? in->line : 0;
  for (Warning& warning : report->warnings) {
    if (warning.check != check || warning.ptx_line != line) continue;
    ++warning.count;
    return true;
  }
  report->warnings.push_back({check, line, 1, make_fault(*program, kind, w, in, lane, text).text()});
  return true;
}

bool Machine::finding(Check check, FaultKind kind, int lane, const char* format, ...) {
  if (!config->checks.on(check)) return true;
  char buffer[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return finding_at(check, kind, warp, instr, lane, buffer);
}

Next Machine::fault(FaultKind kind, int lane, const char* format, ...) {
  char buffer[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  fault_at(kind, warp, instr, lane, buffer);
  return Next::kFault;
}

std::string Machine::describe_wait(const Warp* w, const Group& g) const {
  const Instr& in = program->code[g.pc];
  std::string where = text_of("CTA (%u, %u, %u) rank %u warp %u", w->cta->id.x, w->cta->id.y, w->cta->id.z,
                              w->cta->rank, w->index);
  if (g.mask != w->initial) where += text_of(" lanes 0x%08x", g.mask);
  where += text_of(", PTX line %u", in.line);
  std::string source = source_of(*program, in);
  if (!source.empty()) where += " (" + source + ")";
  where += ": ";
  const Wait& wait = g.wait;
  switch (wait.kind) {
    case WaitKind::kNone:
      return where + "is polling: '" +
             (in.line && in.line <= program->module->lines.size() ? trim(program->module->lines[in.line - 1])
                                                                  : "") +
             "'";
    case WaitKind::kNamedBarrier: {
      const NamedBarrier& b = w->cta->named[wait.offset];
      return where + text_of("waits at barrier %u, %u of %u threads arrived", wait.offset, b.arrived,
                             b.whole ? w->cta->live_warps * 32 : b.expected);
    }
    case WaitKind::kMbarrier: {
      std::string name = shared_name(wait.cta, wait.offset);
      auto found = wait.cta->mbarriers.find(wait.offset);
      if (found == wait.cta->mbarriers.end())
        return where + "waits for the mbarrier at " + name + ", which is gone";
      const Mbarrier& b = *found->second;
      return where + text_of(
                         "waits for parity %u of the mbarrier at %s (initialised by PTX line %u): in phase "
                         "%llu, %u of %u arrivals and %lld bytes are missing",
                         wait.parity, name.c_str(), b.init_line, static_cast<ull>(b.phase), b.pending,
                         b.count, static_cast<long long>(b.tx));
    }
    case WaitKind::kCluster:
      return where + text_of("waits at the cluster barrier, %u of %u warps arrived", w->cta->cluster->arrived,
                             w->cta->cluster->live_warps);
    case WaitKind::kBulkGroup:
    case WaitKind::kAsyncGroup:
      return where + "waits for asynchronous copies";
    case WaitKind::kWarpgroup:
      return where + "wgmma.wait_group waits for the other warps of the warpgroup to issue their part";
    case WaitKind::kRegisters:
      return where + text_of(
                         "setmaxnreg.inc waits for %u registers a thread, it has %u and the pool of the CTA "
                         "has %lld a warp left",
                         wait.offset, w->register_count, static_cast<long long>(w->cta->free_registers));
    case WaitKind::kConverge:
      return where + text_of("waits for the lanes 0x%08x of its member mask", wait.offset);
    case WaitKind::kSleep:
      return where + "sleeps";
  }
  return where;
}

void Machine::report_stuck(bool spinning) {
  std::string text =
      spinning ? text_of("no progress in %llu warp instructions: every warp that can run only polls",
                         static_cast<ull>(config->max_idle_instructions))
               : "no warp can run and no asynchronous copy is in flight";
  FaultKind kind = FaultKind::kDeadlock;
  uint32_t shown = 0, waiting = 0;
  const Warp* first = nullptr;
  const Instr* first_instr = nullptr;
  std::string list;
  for (const auto& k : clusters) {
    for (const auto& c : k->ctas) {
      for (const auto& w : c->warps) {
        for (const Group& g : w->groups) {
          ++waiting;
          if (g.wait.kind == WaitKind::kRegisters) kind = FaultKind::kRegisters;
          if (!first) {
            first = w.get();
            first_instr = &program->code[g.pc];
          }
          if (shown < 64) {
            list += "\n  " + describe_wait(w.get(), g);
            ++shown;
          }
        }
      }
    }
  }
  text += text_of("; %u waiting:", waiting) + list;
  if (waiting > shown) text += text_of("\n  and %u more", waiting - shown);
  fault_at(kind, first, first_instr, -1, text);
}

}  // namespace mla::emu

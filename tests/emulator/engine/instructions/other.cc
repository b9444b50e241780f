// SPDX-License-Identifier: Apache-2.0
//
// setmaxnreg, and what has no effect here.
#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

// a[0] registers, a[1] increase.
Next do_setmaxnreg(Machine& m, const Instr& in, uint32_t mask) {
  if (!m.all_live(-1, mask, "setmaxnreg")) return Next::kFault;
  Warp* w = m.warp;
  uint32_t want = in.a[0];
  if (in.a[1]) {
    if (want < w->register_count) {
      return m.fault(FaultKind::kRegisters, -1, "setmaxnreg.inc to %u registers, but the warp has %u", want,
                     w->register_count);
    }
    int64_t more = int64_t{want} - w->register_count;
    if (more > m.cta->free_registers) {
      m.group->wait.offset = want;
      m.wait_on(WaitKind::kRegisters, &m.cta->register_waiters);
      return Next::kBlocked;
    }
    m.cta->free_registers -= more;
  } else {
    if (want > w->register_count) {
      return m.fault(FaultKind::kRegisters, -1, "setmaxnreg.dec to %u registers, but the warp has %u", want,
                     w->register_count);
    }
    m.cta->free_registers += int64_t{w->register_count} - want;
    m.wake(m.cta->register_waiters);
  }
  w->register_count = want;
  ++m.progress;
  return Next::kNext;
}

Next do_yield(Machine&, const Instr&, uint32_t) { return Next::kYield; }
Next do_nothing(Machine&, const Instr&, uint32_t) { return Next::kNext; }

void decode_setmaxnreg(Decoder& d) {
  Instr& in = d.in;
  std::string what = d.one_of({"inc", "dec"});
  if (what.empty() || !d.mod("sync") || !d.mod("aligned"))
    d.fail("setmaxnreg needs .inc or .dec and .sync.aligned");
  d.type_in({T::kU32});
  d.need(1);
  int64_t registers = d.immediate(0);
  if (registers < 24 || registers > 256 || registers % 8)
    d.fail("setmaxnreg needs a multiple of 8 from 24 to 256, found " + std::to_string(registers));
  in.fn = do_setmaxnreg;
  in.a[0] = static_cast<uint32_t>(registers);
  in.a[1] = what == "inc";
}

void decode_nanosleep(Decoder& d) {
  Instr& in = d.in;
  d.type_in({T::kU32});
  d.need(1);
  in.o[1] = d.src(0, T::kU32);
  in.fn = do_yield;
}

void decode_griddepcontrol(Decoder& d) {
  Instr& in = d.in;
  // A launch starts when the one before it has ended, so there is nothing to wait for.
  if (d.one_of({"wait", "launch_dependents"}).empty())
    d.fail("griddepcontrol needs .wait or .launch_dependents");
  d.need(0);
  in.fn = do_nothing;
}

void decode_pmevent(Decoder& d) {
  Instr& in = d.in;
  d.mod("mask");
  d.need(1);
  in.fn = do_nothing;
}

}  // namespace

void add_other_instructions(InstructionTable* table) {
  (*table)["setmaxnreg"] = decode_setmaxnreg;
  (*table)["nanosleep"] = decode_nanosleep;
  (*table)["griddepcontrol"] = decode_griddepcontrol;
  (*table)["pmevent"] = decode_pmevent;
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

// Handlers of calls to the device runtime. vprintf: a[0] format, a[1] arguments, a[2] result; __assertfail:
// a[0] message, a[1] file, a[2] line, a[3] function; offsets in the frame.
Next do_vprintf(Machine& m, const Instr& in, uint32_t mask);
Next do_assertfail(Machine& m, const Instr& in, uint32_t mask);

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine/mma_kernels.h"

namespace mla::emu {

bool decode_wgmma(Decoder& d) { d.fail("unknown instruction " + d.s.op_text); }

}  // namespace mla::emu

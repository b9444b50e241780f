// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

// bar.warp, whose name the table gives to the barriers.
void decode_warp_barrier(Decoder& d);

}  // namespace mla::emu

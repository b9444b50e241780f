// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/emulator/engine/decoder.h"

namespace mla::emu {

enum ConvertFlags : uint32_t { kFtzFlag = 1, kSatFlag = 2, kIntegral = 4, kRelu = 8, kSatFinite = 16 };

// cvt to a pair of small floats, or from one: a[1] and a[2] hold rounding and flags. `mode` is the rounding
// as written.
void decode_packed_convert(Decoder& d, const std::string& mode, T to, T from);
bool is_packed(T t);
void decode_tf32_convert(Decoder& d, const std::string& mode, T from);
// cvt.pack, after those two words.
void decode_convert_pack(Decoder& d);

}  // namespace mla::emu

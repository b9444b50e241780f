// SPDX-License-Identifier: Apache-2.0
//
// Rules that arithmetic of several widths shares.
#pragma once

#include <string>

#include "tests/emulator/engine/fp.h"

namespace mla::emu {

inline float minmax(float a, float b, bool max, bool nan) {
  if (a != a || b != b) {
    if (nan || (a != a && b != b)) return f32_from(kNanF32);
    return a != a ? b : a;
  }
  if (a == b) return max == std::signbit(a) ? b : a;  // -0 is less than +0
  return max == (a > b) ? a : b;
}

// .rn, .rz, .rm, .rp; nearest for anything else.
inline Round round_of(const std::string& name) {
  return name == "rz"   ? Round::kZero
         : name == "rm" ? Round::kDown
         : name == "rp" ? Round::kUp
                        : Round::kNearest;
}

}  // namespace mla::emu

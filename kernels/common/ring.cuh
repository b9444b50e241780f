// SPDX-License-Identifier: Apache-2.0
//
// Place in a ring of stages.
#pragma once

#include <cstdint>

namespace mla {

// A stage index and its phase parity in a ring of kStages.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace mla

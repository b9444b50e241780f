// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/tile_math.h"

namespace mla::reference::avx2 {
#include "tests/reference/tile_math.inc"
}  // namespace mla::reference::avx2

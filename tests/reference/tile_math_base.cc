// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/tile_math.h"

namespace mla::reference {

namespace base {
#include "tests/reference/tile_math.inc"
}  // namespace base

namespace avx2 {
extern const TileMath kTileMath;
}  // namespace avx2

const TileMath& tile_math() {
#if defined(MLA_REFERENCE_AVX2)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has_avx2 ? avx2::kTileMath : base::kTileMath;
#else
  return base::kTileMath;
#endif
}

}  // namespace mla::reference

// SPDX-License-Identifier: Apache-2.0
//
// PTX wrappers: tensor maps and tensor copies.
#pragma once

#include <cstdint>

#include "kernels/common/mla_params.h"

namespace mla::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box at (x, y, z) of a 3-D tensor map into this CTA; its bytes count on `bar`. The
// destination is named shared::cta: for shared::cluster, ptxas of sm_120 adds a call for the case of
// another CTA's memory, and then ignores setmaxnreg.
__device__ __forceinline__ void tma_load_3d(uint32_t dst, const TensorMap* map, uint32_t bar, int x, int y,
                                            int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(dst),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The same into the CTAs of the cluster in `mask`, at the same place of each; the bytes count on the
// barrier at the same place as `bar` in each of them.
__device__ __forceinline__ void tma_load_3d_multicast(uint32_t dst, const TensorMap* map, uint32_t bar, int x,
                                                      int y, int z, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, "
      "{%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}

}  // namespace mla::ptx

// SPDX-License-Identifier: Apache-2.0
//
// What a cubin says about itself: one 32-bit constant per line, readable from the ELF symbol table
// (section .nv.constant3) without a GPU. The generator checks them against what it asked for, and
// `mla-gen index` rebuilds a manifest from them alone.
#pragma once

#include <cstdint>

namespace mla::cubin {

inline constexpr uint32_t kInfoVersion = 1;

// Values of the constants mla_family, mla_*_dtype, mla_mma and of the bits of mla_features.
enum Family : uint32_t { kFamilyCluster = 1, kFamilyHopper = 2 };
enum DType : uint32_t { kE4M3 = 1, kBF16 = 2 };
enum Mma : uint32_t { kMmaPlain = 1, kMmaBlockScaled = 2 };
enum Feature : uint32_t {
  kFeatureLse = 1u << 0,             // writes lse when asked
  kFeaturePdl = 1u << 1,             // executes griddepcontrol.wait before it reads memory
  kFeatureSeparateValues = 1u << 2,  // values may come from a pool of their own
};

}  // namespace mla::cubin

// Every constant, as X(name). Each stands in the cubin as `mla_<name>`, a uint32.
#define MLA_CUBIN_INFO_FIELDS(X)                                              \
  X(info_version)   /* kInfoVersion */                                        \
  X(params_version) /* mla::kParamsVersion */                                 \
  X(params_bytes)   /* sizeof(mla::DecodeParams) */                           \
  X(family)         /* Family */                                              \
  X(q_dtype)        /* DType */                                               \
  X(kv_dtype)       /* DType */                                               \
  X(out_dtype)      /* DType */                                               \
  X(mma)            /* Mma */                                                 \
  X(rows)           /* row tile: most heads of one query token */             \
  X(head_dim_k)     /* 576 */                                                 \
  X(head_dim_v)     /* 512 */                                                 \
  X(tile_tokens)    /* tokens of one KV tile */                               \
  X(cluster_size)   /* CTAs of a cluster */                                   \
  X(threads)        /* threads of a CTA */                                    \
  X(dynamic_smem)   /* bytes of dynamic shared memory */                      \
  X(page_size_min)  /* smallest page size served, tokens, power of two */     \
  X(page_size_max)  /* largest page size served, tokens, power of two */      \
  X(k_box)          /* inner box of the key tensor map, elements */           \
  X(k_swizzle)      /* swizzle of the key tensor map: 0, 32, 64, 128 bytes */ \
  X(v_box)          /* inner box of the value tensor map, elements */         \
  X(v_swizzle)      /* swizzle of the value tensor map */                     \
  X(features)       /* Feature bits */

// The same for what the matrix decides and no code depends on; int32. mla_cubin_emit.h emits them.
#define MLA_CUBIN_BUILD_FIELDS(X)                               \
  X(priority) /* higher wins between otherwise equal kernels */ \
  X(carveout) /* percent of shared memory preferred, or -1 */

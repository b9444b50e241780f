// SPDX-License-Identifier: Apache-2.0
//
// The words of this project and the numbers that stand for them: in cubin constants, in the C ABI
// (MLA_DTYPE_E4M3 is 1) and, spelled out, in JSON and messages. One line a word; nothing else lists
// them. Numbers are never reused or changed.
//
// A list is X(word, NAME, number, meaning); MLA_DTYPE_WORDS has the bytes of an element besides.
// Plain C++, no CUDA headers.
#pragma once

#include <cstdint>

// clang-format off

// X(word, NAME, number, bytes of an element, meaning)
#define MLA_DTYPE_WORDS(X)                                            \
  X(e4m3, E4M3, 1, 1, "8-bit float, 4 exponent and 3 mantissa bits")  \
  X(bf16, BF16, 2, 2, "bfloat16")                                     \
  X(f32,  F32,  3, 4, "IEEE single precision")

// What a kernel computes.
#define MLA_KIND_WORDS(X)                                                            \
  X(decode, DECODE, 1, "attention of a few query tokens over a paged latent cache")  \
  X(merge,  MERGE,  2, "partial (out, lse) pairs into one")

#define MLA_FAMILY_WORDS(X)                                               \
  X(cluster, CLUSTER, 1, "mma.sync; native on sm_120f, portable")         \
  X(hopper,  HOPPER,  2, "wgmma, sm_90a")                                 \
  X(merge,   MERGE,   3, "merge kernels, no matrix instruction")

// Form of the matrix instruction.
#define MLA_MMA_WORDS(X)                                                                       \
  X(plain,        PLAIN,        1, "mma.sync")                                                 \
  X(block_scaled, BLOCK_SCALED, 2, "mma.sync kind::mxf8f6f4 with unit scales, the same result") \
  X(wgmma,        WGMMA,        3, "wgmma")

// What is rounded on the way.
#define MLA_ARITHMETIC_WORDS(X)                                                             \
  X(quantised, QUANTISED, 1, "q, cache and P are e4m3")                                     \
  X(exact,     EXACT,     2, "cache values are used exactly; P is f16 or bf16")

// Layout of a cached token.
#define MLA_CACHE_LAYOUT_WORDS(X)                                                    \
  X(dense, DENSE, 1, "head_dim_k elements of kv_dtype, one scale for the whole pool")

// Parameter structs of kernels/common/mla_params.h.
#define MLA_PARAMS_WORDS(X)                    \
  X(decode, DECODE, 1, "mla::DecodeParams")    \
  X(merge,  MERGE,  2, "mla::MergeParams")

// What a kernel can do beyond the least; bits. Asking for what a kernel lacks is an error that names
// the argument.
#define MLA_FEATURE_WORDS(X)                                                                          \
  X(lse,              LSE,              0x1u,   "writes lse when asked")                              \
  X(pdl,              PDL,              0x2u,   "waits for its predecessor with griddepcontrol.wait") \
  X(separate_values,  SEPARATE_VALUES,  0x4u,   "values may come from a pool of their own")           \
  X(strides,          STRIDES,          0x8u,   "free strides of q, out and lse")                     \
  X(ragged_q,         RAGGED_Q,         0x10u,  "query counts of each request, on the device")        \
  X(non_causal,       NON_CAUSAL,       0x20u,  "every query token sees the whole sequence")          \
  X(context_parallel, CONTEXT_PARALLEL, 0x40u,  "the pool holds one rank's share of every sequence")  \
  X(fixed_split,      FIXED_SPLIT,      0x80u,  "splits of a fixed number of tokens")                 \
  X(window,           WINDOW,           0x100u, "sliding window")                                     \
  X(sparse,           SPARSE,           0x200u, "a list of tokens for every query token")

// What a reader must understand to use a kernel at all; bits. A loader passes over a kernel with a
// requirement that it does not know.
#define MLA_REQUIREMENT_WORDS(X)                                                                       \
  X(row_tiles, ROW_TILES, 0x1u, "rows are (query token, head) pairs; a request has one or more tiles") \
  X(partials,  PARTIALS,  0x2u, "partial results lie at DecodeParams::partials")

// clang-format on

namespace mla {

#define MLA_WORD_ENUM(word, NAME, number, ...) k##NAME = number,
namespace dtype {
enum DType : uint32_t { MLA_DTYPE_WORDS(MLA_WORD_ENUM) };
// Bytes of an element; 0: no such type.
constexpr uint32_t bytes(uint32_t dtype) {
  switch (dtype) {
#define MLA_DTYPE_BYTES(word, NAME, number, bytes, meaning) \
  case number:                                              \
    return bytes;
    MLA_DTYPE_WORDS(MLA_DTYPE_BYTES)
#undef MLA_DTYPE_BYTES
    default:
      return 0;
  }
}
}  // namespace dtype
namespace kind {
enum Kind : uint32_t { MLA_KIND_WORDS(MLA_WORD_ENUM) };
}
namespace family {
enum Family : uint32_t { MLA_FAMILY_WORDS(MLA_WORD_ENUM) };
}
namespace mma_form {
enum MmaForm : uint32_t { MLA_MMA_WORDS(MLA_WORD_ENUM) };
}
namespace arithmetic {
enum Arithmetic : uint32_t { MLA_ARITHMETIC_WORDS(MLA_WORD_ENUM) };
}
namespace cache_layout {
enum CacheLayout : uint32_t { MLA_CACHE_LAYOUT_WORDS(MLA_WORD_ENUM) };
}
namespace params_struct {
enum ParamsStruct : uint32_t { MLA_PARAMS_WORDS(MLA_WORD_ENUM) };
}
namespace feature {
enum Feature : uint32_t { MLA_FEATURE_WORDS(MLA_WORD_ENUM) };
}
namespace requirement {
enum Requirement : uint32_t { MLA_REQUIREMENT_WORDS(MLA_WORD_ENUM) };
}
#undef MLA_WORD_ENUM

}  // namespace mla

// SPDX-License-Identifier: Apache-2.0
//
// The field table: every fact that a kernel states of itself, once. From it follow the cubin's
// constants (a uint32 `mla_<name>` each, readable from the ELF symbol table without a GPU;
// mla_cubin_emit.h), struct Facts, the manifest's reading, writing and JSON Schema, the comparison of
// asked and built, and `mla-gen show`. Plain C++, no CUDA headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/mla_words.h"

namespace mla::cubin {

inline constexpr uint32_t kInfoVersion = 1;

}  // namespace mla::cubin

// X(section, name, type, low, high, kinds, meaning)
//
// section  object of the kernel's entry in the manifest; `kernel` is the entry itself
// type     number, integer (signed), boolean, swizzle (0, 32, 64, 128); or a word list of mla_words.h:
//          kind, family, dtype, mma, arithmetic, cache_layout, params_struct; or bits: feature (an
//          object of booleans, absent = false), requirement (a list of words, absent = empty)
// low/high range of numbers, inclusive
// kinds    kernels that have the field: all, decode, merge
//
// clang-format off
#define MLA_CUBIN_FIELDS(X) \
  X(kernel,    kind,               kind,          0, 0,              all,    "what the kernel computes") \
  X(kernel,    priority,           integer,       -1000000, 1000000, all,    "higher wins between otherwise equal kernels") \
  X(kernel,    requires_bits,      requirement,   0, 0,              all,    "what a reader must understand") \
  X(config,    family,             family,        0, 0,              all,    "kernel family") \
  X(config,    q_dtype,            dtype,         0, 0,              decode, "type of q") \
  X(config,    kv_dtype,           dtype,         0, 0,              decode, "type of the cache") \
  X(config,    partial_dtype,      dtype,         0, 0,              merge,  "type of the partial outputs") \
  X(config,    out_dtype,          dtype,         0, 0,              all,    "type of out") \
  X(config,    arithmetic,         arithmetic,    0, 0,              decode, "what is rounded on the way") \
  X(config,    mma,                mma,           0, 0,              decode, "form of the matrix instruction") \
  X(config,    cache_layout,       cache_layout,  0, 0,              decode, "layout of a cached token") \
  X(config,    rows,               number,        1, 1024,           decode, "row tile: (query token, head) pairs computed together") \
  X(config,    head_dim_k,         number,        16, 65536,         decode, "elements of a key") \
  X(config,    head_dim_v,         number,        16, 65536,         all,    "elements of a value, the first ones of the key") \
  X(config,    tile_tokens,        number,        1, 65536,          decode, "tokens of a KV tile") \
  X(config,    page_size_multiple, number,        1, 65536,          decode, "page sizes are multiples of this, tokens") \
  X(config,    page_size_max,      number,        1, 1048576,        decode, "largest page size, tokens") \
  X(config,    features,           feature,       0, 0,              all,    "what it can do") \
  X(boxes,     tensor_maps,        boolean,       0, 1,              decode, "reads the pools through tensor maps") \
  X(boxes,     box_tokens,         number,        1, 256,            decode, "a box has gcd(page size, box_tokens) tokens") \
  X(boxes,     k_box,              number,        1, 256,            decode, "inner box of the key map, elements") \
  X(boxes,     k_swizzle,          swizzle,       0, 128,            decode, "swizzle of the key map, bytes") \
  X(boxes,     v_box,              number,        1, 256,            decode, "inner box of the value map, elements") \
  X(boxes,     v_swizzle,          swizzle,       0, 128,            decode, "swizzle of the value map, bytes") \
  X(launch,    threads,            number,        32, 1024,          all,    "threads of a CTA") \
  X(launch,    cluster_size,       number,        1, 16,             all,    "CTAs of a cluster, which is one worker") \
  X(launch,    dynamic_smem,       number,        0, 1048576,        all,    "dynamic shared memory of a CTA, bytes") \
  X(launch,    carveout,           integer,       -1, 100,           all,    "percent of shared memory preferred; -1: the driver's choice") \
  X(schedule,  item_overhead,      number,        0, 65536,          decode, "cost of beginning and ending an item, tiles") \
  X(schedule,  min_share,          number,        1, 65536,          decode, "least share worth a worker of its own, tiles") \
  X(schedule,  max_flat_merge,     number,        1, 65536,          decode, "splits merged at once; more go through groups") \
  X(workspace, zeroed_bytes,       number,        0, 1073741824,     all,    "at the start, zero between launches but for the header; 0: no workspace") \
  X(workspace, fixed_bytes,        number,        0, 1073741824,     all,    "of partial results, whatever the number of workers") \
  X(workspace, bytes_per_worker,   number,        0, 1073741824,     all,    "of partial results") \
  X(workspace, max_workers,        number,        1, 65536,          all,    "most workers of a launch") \
  X(cost,      tile_cost,          number,        1, 1000000000,     all,    "modelled time of a tile of a row tile times the SMs it occupies, ns per 64 tokens") \
  X(params,    params_struct,      params_struct, 0, 0,              all,    "parameter struct of mla_params.h") \
  X(params,    params_version,     number,        1, 2147483647,     all,    "its version") \
  X(params,    params_bytes,       number,        1, 32764,          all,    "its size")
// clang-format on

namespace mla::cubin {

#define MLA_FIELD_NUMBER(name) uint32_t name = 0;
#define MLA_FIELD_INTEGER(name) int32_t name = 0;
#define MLA_FIELD_TYPE_number MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_integer MLA_FIELD_INTEGER
#define MLA_FIELD_TYPE_boolean MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_swizzle MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_kind MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_family MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_dtype MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_mma MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_arithmetic MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_cache_layout MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_params_struct MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_feature MLA_FIELD_NUMBER
#define MLA_FIELD_TYPE_requirement MLA_FIELD_NUMBER

// What a cubin says of itself. A field that its kind does not have is 0.
struct Facts {
#define MLA_FIELD_MEMBER(section, name, type, low, high, kinds, meaning) MLA_FIELD_TYPE_##type(name)
  MLA_CUBIN_FIELDS(MLA_FIELD_MEMBER)
#undef MLA_FIELD_MEMBER
};

#undef MLA_FIELD_NUMBER
#undef MLA_FIELD_INTEGER

enum class FieldType : uint32_t {
  number,
  integer,
  boolean,
  swizzle,
  kind,
  family,
  dtype,
  mma,
  arithmetic,
  cache_layout,
  params_struct,
  feature,
  requirement,
};

// Bits of Field::kinds, by number of the kind.
inline constexpr uint32_t kKinds_decode = 1u << kind::kDECODE;
inline constexpr uint32_t kKinds_merge = 1u << kind::kMERGE;
inline constexpr uint32_t kKinds_all = ~0u;

struct Field {
  const char* section;
  const char* name;
  FieldType type;
  int64_t low, high;
  uint32_t kinds;
  const char* meaning;
  size_t offset;  // in Facts, of a 32-bit member
};

inline constexpr Field kFields[] = {
#define MLA_FIELD_ROW(section, name, type, low, high, kinds, meaning) \
  {#section, #name, FieldType::type, low, high, kKinds_##kinds, meaning, offsetof(Facts, name)},
    MLA_CUBIN_FIELDS(MLA_FIELD_ROW)
#undef MLA_FIELD_ROW
};

}  // namespace mla::cubin

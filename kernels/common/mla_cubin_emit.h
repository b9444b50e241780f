// SPDX-License-Identifier: Apache-2.0
//
// How a kernel file says what it is. It defines, in any namespace,
//
//   constexpr mla::cubin::Facts kFacts = {
//       .kind = mla::kind::kDECODE,
//       .requires_bits = mla::requirement::kROW_TILES,
//       .family = mla::family::kCLUSTER,
//       .q_dtype = mla::dtype::kE4M3,
//       ...                               // every field of mla_cubin_info.h that its kind has
//   };
//   MLA_EMIT_DECODE_FACTS;                // or MLA_EMIT_MERGE_FACTS; takes kFacts
//
// which becomes a 32-bit constant `mla_<field>` for each field that such a kernel has, to be read out
// of the cubin's symbol table. A value outside its range is a compile error that names the field, so
// most forgotten fields are too; priority and carveout come from macros (below) and are left out.
//
// The form is chosen so that nvcc keeps it (checked with 13.0.88):
//  - `__constant__`: the value lies in .nv.constant3, a PROGBITS section, so it is in the file.
//  - `extern "C"` without braces: external linkage and the plain name, in any namespace, unnamed
//    ones included. A `static` constant in a namespace would be named _ZN..._INTERNAL_<hash>...,
//    where the hash depends on the file's path: not found by name and not reproducible.
//  - `used`: no warning for a constant that no code reads, and no later nvcc drops it.
//  - braces: a value that does not fit 32 unsigned bits is a compile error.
//
// Without GENERATE_CUBIN (a host-launchable build) nothing is emitted, so that several
// configurations can be linked into one program; the value is still checked.
#pragma once

#include <cstdint>

#include "kernels/common/mla_cubin_info.h"

namespace mla::cubin {

// MLA_EMIT_CUBIN_INFO takes its name's type from here: a name that is not in the table does not
// compile.
struct EmittedFacts : Facts {
  uint32_t info_version;
};

constexpr bool is_emittable(FieldType type, int64_t low, int64_t high, int64_t value) {
  if (type == FieldType::feature || type == FieldType::requirement) return true;
  if (type == FieldType::swizzle) return value == 0 || value == 32 || value == 64 || value == 128;
  const bool is_word = type > FieldType::swizzle;
  return is_word ? value != 0 : value >= low && value <= high;
}

}  // namespace mla::cubin

#if defined(GENERATE_CUBIN)
#define MLA_EMIT_CUBIN_INFO(name, value)                                         \
  extern "C" __attribute__((used))                                               \
  __constant__ constexpr decltype(::mla::cubin::EmittedFacts::name) mla_##name { \
    value                                                                        \
  }
#else
#define MLA_EMIT_CUBIN_INFO(name, value)                                      \
  static_assert(decltype(::mla::cubin::EmittedFacts::name){value} == (value), \
                "mla_" #name " is a constant of 32 bits")
#endif

// What the matrix says about a configuration and no code depends on. It stands in the cubin all the
// same, so that a manifest can be rebuilt from the cubins alone (`mla-gen index`).
#ifndef MLA_PRIORITY
#define MLA_PRIORITY 0  // higher wins between otherwise equal kernels
#endif
#ifndef MLA_CARVEOUT
#define MLA_CARVEOUT 100  // percent of shared memory preferred; -1: the driver's choice
#endif
MLA_EMIT_CUBIN_INFO(priority, MLA_PRIORITY);
MLA_EMIT_CUBIN_INFO(carveout, MLA_CARVEOUT);

#define MLA_EMIT_FIELD(name, type, low, high)                                                      \
  static_assert(::mla::cubin::is_emittable(::mla::cubin::FieldType::type, low, high, kFacts.name), \
                "kFacts." #name " is missing or out of range");                                    \
  MLA_EMIT_CUBIN_INFO(name, kFacts.name)
#define MLA_EMIT_NO_FIELD(name, type, low, high) static_assert(true)
// MLA_EMIT_FIELD, but nothing for the two that come from macros: their entry here has a comma, which
// moves MLA_EMIT_NO_FIELD to where the choice is taken from.
#define MLA_EMIT_SKIP_priority , MLA_EMIT_NO_FIELD
#define MLA_EMIT_SKIP_carveout , MLA_EMIT_NO_FIELD
#define MLA_EMIT_SECOND(first, second, ...) second
#define MLA_EMIT_CHOOSE(...) MLA_EMIT_SECOND(__VA_ARGS__)
#define MLA_EMIT_UNLESS_SKIPPED(name) MLA_EMIT_CHOOSE(MLA_EMIT_SKIP_##name, MLA_EMIT_FIELD, ~)

#define MLA_EMIT_DECODE_all(name) MLA_EMIT_UNLESS_SKIPPED(name)
#define MLA_EMIT_DECODE_decode(name) MLA_EMIT_UNLESS_SKIPPED(name)
#define MLA_EMIT_DECODE_merge(name) MLA_EMIT_NO_FIELD
#define MLA_EMIT_MERGE_all(name) MLA_EMIT_UNLESS_SKIPPED(name)
#define MLA_EMIT_MERGE_decode(name) MLA_EMIT_NO_FIELD
#define MLA_EMIT_MERGE_merge(name) MLA_EMIT_UNLESS_SKIPPED(name)
#define MLA_EMIT_DECODE_ROW(section, name, type, low, high, kinds, meaning) \
  MLA_EMIT_DECODE_##kinds(name)(name, type, low, high);
#define MLA_EMIT_MERGE_ROW(section, name, type, low, high, kinds, meaning) \
  MLA_EMIT_MERGE_##kinds(name)(name, type, low, high);

#define MLA_EMIT_DECODE_FACTS                                                                  \
  static_assert(kFacts.kind == ::mla::kind::kDECODE, "kFacts is not that of a decode kernel"); \
  MLA_CUBIN_FIELDS(MLA_EMIT_DECODE_ROW)                                                        \
  MLA_EMIT_CUBIN_INFO(info_version, ::mla::cubin::kInfoVersion)
#define MLA_EMIT_MERGE_FACTS                                                                 \
  static_assert(kFacts.kind == ::mla::kind::kMERGE, "kFacts is not that of a merge kernel"); \
  MLA_CUBIN_FIELDS(MLA_EMIT_MERGE_ROW)                                                       \
  MLA_EMIT_CUBIN_INFO(info_version, ::mla::cubin::kInfoVersion)

// SPDX-License-Identifier: Apache-2.0
//
// How a kernel file says what it is: MLA_EMIT_CUBIN_INFO(rows, 128); defines the 32-bit constant
// `mla_rows` of mla_cubin_info.h, which the generator reads out of the cubin's symbol table.
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

#if defined(GENERATE_CUBIN)
#define MLA_EMIT_CUBIN_INFO(name, value) \
  extern "C" __attribute__((used)) __constant__ constexpr std::uint32_t mla_##name { value }
#else
#define MLA_EMIT_CUBIN_INFO(name, value) \
  static_assert(std::uint32_t{value} == (value), "mla_" #name " is a constant of 32 bits")
#endif

// What the matrix says about a configuration and no code depends on. It stands in the cubin all the
// same, so that a manifest can be rebuilt from the cubins alone (`mla-gen index`).
#ifndef MLA_PRIORITY
#define MLA_PRIORITY 0  // higher wins between otherwise equal kernels
#endif
#ifndef MLA_CARVEOUT
#define MLA_CARVEOUT 100  // percent of shared memory preferred; -1: the driver's choice
#endif
MLA_EMIT_CUBIN_INFO(priority, static_cast<std::uint32_t>(MLA_PRIORITY));
MLA_EMIT_CUBIN_INFO(carveout, static_cast<std::uint32_t>(MLA_CARVEOUT));

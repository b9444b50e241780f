// SPDX-License-Identifier: Apache-2.0
//
// From the arguments of a launch to the parameter struct of a kernel: one function for every struct
// and version of kernels/common/mla_params.h, in a file of its own. The rest of the loader knows no
// parameter struct, and these functions know of a kernel what its facts say. Nothing here allocates
// unless it fails.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"
#include "loader/include/mla_loader.h"
#include "loader/src/cuda_abi.h"
#include "loader/src/driver.h"
#include "loader/src/error.h"

namespace mla::loader {

// Limits of the arguments, whatever the kernel.
inline constexpr int32_t kMaxHeads = 128;
inline constexpr int32_t kMaxQLen = 64;

// The kernel that parameters are for.
struct ParamsTarget {
  const cubin::Facts* facts;
  std::string_view kernel;   // its id, for messages
  const Driver* driver;      // encodes tensor maps
  int32_t device;            // for messages
  uint64_t partials_offset;  // of the partial results in a workspace
  uint64_t workspace_bytes;  // of a workspace, at least; 0: it uses none
};

// Checks every argument and makes the struct, but for its tensor maps, without a call to the driver.
// Errors name the field.
using FillDecode = Error (*)(const ParamsTarget& target, const mla_launch_args& args, void* params);
using FillMerge = Error (*)(const ParamsTarget& target, const mla_merge_args& args, void* params);
// Encodes the tensor maps of a filled struct; a context must be current.
using EncodeMaps = Error (*)(const ParamsTarget& target, void* params);

struct ParamsFunction {
  uint32_t params_struct;
  uint32_t version;
  uint32_t bytes;
  // One of them, by the kind that takes the struct.
  FillDecode decode;
  FillMerge merge;
  EncodeMaps encode;  // null: it has no tensor maps
};

// Null: no such struct and version.
const ParamsFunction* find_params(uint32_t params_struct, uint32_t version);

// Room for any of the structs, aligned as CUtensorMap is in NVIDIA's header.
inline constexpr uint32_t kMaxParamsBytes = 1024;
struct alignas(128) ParamsBuffer {
  unsigned char bytes[kMaxParamsBytes];
};

// ---- checks that the functions share; `field` is the argument's name -----------------------------

inline constexpr int64_t kMaxStride = int64_t{1} << 40;  // bytes, exclusive: of a tensor map

Error check_address(const char* field, uint64_t address, uint64_t alignment, bool optional);
Error check_range(const char* field, int64_t value, int64_t least, int64_t most, std::string_view why = {});
Error check_finite(const char* field, float value);
// Whether `bytes` from `address` on lie within the address space; an absent address (0) does.
Error check_end(const char* field, uint64_t address, unsigned __int128 bytes);
// Refuses `flags` that this library does not know or the kernel does not support.
Error check_flags(const ParamsTarget& target, uint32_t flags, uint32_t known);

// A workspace that is null, misaligned, too small for the kernel or ends past the address space.
Error check_workspace(const ParamsTarget& target, const char* address_field, uint64_t workspace,
                      const char* size_field, uint64_t bytes);

// A dense or strided array of rows, [outer, inner, row], in bytes or elements.
struct Rows {
  const char* outer_field;  // of the strides
  const char* inner_field;
  const char* unit;      // "bytes" or "elements"
  int64_t outer, inner;  // extents, 1 ... 2^40
  int64_t row;           // of one row, in units
  int64_t multiple;      // strides are multiples of it
  int64_t unit_bytes;
};
// Fills in strides that are 0, checks that rows do not overlap, and sets *span to the units from the
// first to the last.
Error check_rows(const Rows& rows, int64_t* outer_stride, int64_t* inner_stride, __int128* span);

}  // namespace mla::loader

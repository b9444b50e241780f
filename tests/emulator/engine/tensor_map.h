// SPDX-License-Identifier: Apache-2.0
//
// What the 128 opaque bytes of a CUtensorMap hold on the emulator. The driver writes it in
// cuTensorMapEncodeTiled after its argument checks; the engine reads it wherever a kernel hands a
// tensor map to cp.async.bulk.tensor.
#pragma once

#include <cstdint>

namespace mla::emu {

inline constexpr uint32_t kTensorMapMagic = 0x504d5445;  // "ETMP"

struct TensorMapImage {
  uint32_t magic;             // kTensorMapMagic
  uint8_t data_type;          // the value of CUtensorMapDataType (see element_bytes)
  uint8_t rank;               // 1 to 5
  uint8_t interleave;         // CUtensorMapInterleave; the engine executes 0 (none) alone
  uint8_t swizzle;            // CUtensorMapSwizzle: 0 none, 1 32B, 2 64B, 3 128B
  uint8_t l2_promotion;       // no effect on results
  uint8_t oob_fill;           // CUtensorMapFloatOOBfill: 0 zero, 1 NaN (floating types)
  uint8_t reserved[6];        // zero
  uint64_t address;           // of element (0, ..., 0), in device memory
  uint64_t dim[5];            // elements; dim[0] is the innermost
  uint64_t stride_bytes[4];   // bytes between neighbours along dim[1] to dim[4]
  uint16_t box[5];            // elements of the box, 1 to 256 per dimension
  uint8_t element_stride[5];  // traversal stride, 1 to 8
  uint8_t pad;
};

static_assert(sizeof(TensorMapImage) == 112 && sizeof(TensorMapImage) <= 128, "a CUtensorMap is 128 bytes");

// Bytes of one element of a CUtensorMapDataType (0 UINT8, 1 UINT16, 2 UINT32, 3 INT32, 4 UINT64,
// 5 INT64, 6 FLOAT16, 7 FLOAT32, 8 FLOAT64, 9 BFLOAT16, 10 FLOAT32_FTZ, 11 TFLOAT32,
// 12 TFLOAT32_FTZ); 0 for a value that the emulator does not know.
constexpr uint32_t element_bytes(uint8_t data_type) {
  constexpr uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return data_type < sizeof(bytes) ? bytes[data_type] : 0;
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// cuTensorMapEncodeTiled with the argument checks that the real driver was seen to make (see
// ../conformance/golden_sm90a.txt), each refusal with its reason on stderr (the real driver says
// INVALID_VALUE alone). An address of null and a map that is not aligned pass here as they do there; a
// kernel that uses them faults.
#include "tests/emulator/engine/tensor_map.h"

#include <cstring>

#include "tests/emulator/driver/state.h"

using namespace mla::emu::driver;

namespace {

constexpr uint64_t kMaxDim = uint64_t{1} << 32;
constexpr uint64_t kMaxBoxBytes = 228 * 1024;  // accepted on 9.0; 240 KiB is not
constexpr uint64_t kMaxStride = uint64_t{1} << 40;

struct Arguments {
  CUtensorMap* map;
  CUtensorMapDataType type;
  cuuint32_t rank;
  uint64_t address;
  const cuuint64_t* dims;
  const cuuint64_t* strides;
  const cuuint32_t* box;
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion l2;
  CUtensorMapFloatOOBfill fill;
};

bool is_float(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return true;
    default:
      return false;
  }
}

uint32_t swizzle_span(CUtensorMapSwizzle swizzle) {
  return swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 128;
}

// What is wrong with the arguments; empty if nothing is.
std::string check(const Arguments& a) {
  const auto text = [](const char* name, size_t i, uint64_t value, const std::string& rule) {
    return std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(value) + " " + rule;
  };
  if (!a.map) return "tensorMap is null";
  const uint32_t element = mla::emu::element_bytes(uint8_t(a.type));
  if (a.type < 0 || !element) return "tensorDataType " + std::to_string(a.type) + " is not known";
  if (a.interleave < 0 || a.interleave > CU_TENSOR_MAP_INTERLEAVE_32B) return "interleave is not known";
  if (a.swizzle < 0 || a.swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B) return "swizzle is not known";
  if (a.l2 < 0 || a.l2 > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return "l2Promotion is not known";
  if (a.fill < 0 || a.fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) return "oobFill is not known";
  const bool interleaved = a.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
  if (a.rank < (interleaved ? 3u : 1u) || a.rank > 5) {
    return "tensorRank " + std::to_string(a.rank) + " is outside " + (interleaved ? "3" : "1") + "...5";
  }
  const uint32_t alignment = a.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (a.address % alignment) return "globalAddress is not " + std::to_string(alignment) + "-byte aligned";
  if (!a.dims || !a.box || !a.element_strides || !a.strides) return "an array is null";
  for (size_t i = 0; i < a.rank; ++i) {
    if (a.dims[i] == 0 || a.dims[i] > kMaxDim) return text("globalDim", i, a.dims[i], "is outside 1...2^32");
    if (a.box[i] == 0 || a.box[i] > 256) return text("boxDim", i, a.box[i], "is outside 1...256");
    if (a.element_strides[i] == 0 || a.element_strides[i] > 8) {
      return text("elementStrides", i, a.element_strides[i], "is outside 1...8");
    }
  }
  for (size_t i = 0; i + 1 < a.rank; ++i) {
    if (a.strides[i] % alignment)
      return text("globalStrides", i, a.strides[i], "is not a multiple of " + std::to_string(alignment));
    if (a.strides[i] >= kMaxStride) return text("globalStrides", i, a.strides[i], "is not below 2^40");
  }
  uint64_t box_bytes = element;
  for (size_t i = 0; i < a.rank; ++i) box_bytes *= a.box[i];
  if (box_bytes > kMaxBoxBytes) {
    return "boxDim is " + std::to_string(box_bytes) + " bytes, more than " + std::to_string(kMaxBoxBytes);
  }
  const uint64_t inner = uint64_t(a.box[0]) * element;
  if (!interleaved && inner % 16) {
    return text("boxDim", 0, a.box[0], "is " + std::to_string(inner) + " bytes, not a multiple of 16");
  }
  if (!interleaved && a.swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && inner > swizzle_span(a.swizzle)) {
    return text("boxDim", 0, a.box[0],
                "is " + std::to_string(inner) + " bytes, more than the swizzle's " +
                    std::to_string(swizzle_span(a.swizzle)));
  }
  if (a.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float(a.type))
    return "oobFill NaN needs a float type";
  return {};
}

}  // namespace

extern "C" {

MLA_EMU_EXPORT CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void* globalAddress,
    const cuuint64_t* globalDim, const cuuint64_t* globalStrides, const cuuint32_t* boxDim,
    const cuuint32_t* elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const Arguments a = {tensorMap,  tensorDataType, tensorRank,  reinterpret_cast<uint64_t>(globalAddress),
                       globalDim,  globalStrides,  boxDim,      elementStrides,
                       interleave, swizzle,        l2Promotion, oobFill};
  if (const std::string error = check(a); !error.empty()) {
    report("cuTensorMapEncodeTiled: " + error);
    return CUDA_ERROR_INVALID_VALUE;
  }
  mla::emu::TensorMapImage image = {};
  image.magic = mla::emu::kTensorMapMagic;
  image.data_type = uint8_t(tensorDataType);
  image.rank = uint8_t(tensorRank);
  image.interleave = uint8_t(interleave);
  image.swizzle = uint8_t(swizzle);
  image.l2_promotion = uint8_t(l2Promotion);
  image.oob_fill = uint8_t(oobFill);
  image.address = a.address;
  for (size_t i = 0; i < 5; ++i) {
    const bool used = i < tensorRank;
    image.dim[i] = used ? globalDim[i] : 1;
    image.box[i] = uint16_t(used ? boxDim[i] : 1);
    // The stride of the innermost dimension is ignored without interleave.
    image.element_stride[i] = uint8_t(used && (i > 0 || interleave) ? elementStrides[i] : 1);
    if (i > 0 && used) image.stride_bytes[i - 1] = globalStrides[i - 1];
  }
  std::memset(tensorMap, 0, sizeof(*tensorMap));
  std::memcpy(tensorMap, &image, sizeof(image));
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  mla::emu::TensorMapImage image;
  if (!tensorMap || reinterpret_cast<uint64_t>(globalAddress) % 16) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&image, tensorMap, sizeof(image));
  if (image.magic != mla::emu::kTensorMapMagic) return CUDA_ERROR_INVALID_VALUE;
  image.address = reinterpret_cast<uint64_t>(globalAddress);
  std::memcpy(tensorMap, &image, sizeof(image));
  return CUDA_SUCCESS;
}

}  // extern "C"

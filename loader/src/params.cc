// SPDX-License-Identifier: Apache-2.0
#include "loader/src/params.h"

#include <cmath>

namespace mla::loader {

// params_decode_v1.cc, params_merge_v1.cc
Error fill_decode_v1(const ParamsTarget& target, const mla_launch_args& args, void* params);
Error encode_decode_v1(const ParamsTarget& target, void* params);
Error fill_merge_v1(const ParamsTarget& target, const mla_merge_args& args, void* params);

namespace {

constexpr ParamsFunction kFunctions[] = {
    {params_struct::kDECODE, kDecodeParamsVersion, sizeof(DecodeParams), fill_decode_v1, nullptr,
     encode_decode_v1},
    {params_struct::kMERGE, kMergeParamsVersion, sizeof(MergeParams), nullptr, fill_merge_v1, nullptr},
};
static_assert(sizeof(DecodeParams) <= kMaxParamsBytes && sizeof(MergeParams) <= kMaxParamsBytes);

}  // namespace

const ParamsFunction* find_params(uint32_t params_struct, uint32_t version) {
  for (const ParamsFunction& function : kFunctions) {
    if (function.params_struct == params_struct && function.version == version) return &function;
  }
  return nullptr;
}

Error check_address(const char* field, uint64_t address, uint64_t alignment, bool optional) {
  if (address == 0 && !optional) {
    return invalid_argument("args.", field, " is null; must be a device address aligned to ", alignment,
                            " bytes");
  }
  if (address % alignment == 0) return {};
  return invalid_argument("args.", field, " is ", Hex{address}, "; must be ", optional ? "null or " : "",
                          "a device address aligned to ", alignment, " bytes");
}

Error check_range(const char* field, int64_t value, int64_t least, int64_t most, std::string_view why) {
  if (value >= least && value <= most) return {};
  return invalid_argument("args.", field, " is ", value, "; allowed: ", least, " ... ", most, why);
}

Error check_finite(const char* field, float value) {
  if (std::isfinite(value)) return {};
  return invalid_argument("args.", field, " is ", value, "; must be finite");
}

Error check_end(const char* field, uint64_t address, unsigned __int128 bytes) {
  constexpr unsigned __int128 kEnd = static_cast<unsigned __int128>(1) << 64;
  if (address == 0 || address + bytes <= kEnd) return {};
  return invalid_argument(
      "args.", field, " is ", Hex{address}, "; its ",
      bytes < kEnd ? text(static_cast<uint64_t>(bytes)) : text(static_cast<double>(bytes)),
      " bytes reach past the end of the address space");
}

Error check_flags(const ParamsTarget& target, uint32_t flags, uint32_t known) {
  if ((flags & ~known) != 0) {
    return invalid_argument("args.flags is ", Hex{flags}, "; allowed: 0, MLA_LAUNCH_PDL (0x1)",
                            (known & MLA_LAUNCH_NON_CAUSAL) != 0 ? " and MLA_LAUNCH_NON_CAUSAL (0x2)" : "");
  }
  const std::pair<uint32_t, uint32_t> wants[] = {{MLA_LAUNCH_PDL, MLA_FEATURE_PDL},
                                                 {MLA_LAUNCH_NON_CAUSAL, MLA_FEATURE_NON_CAUSAL}};
  for (const auto& [flag, feature] : wants) {
    if ((flags & flag) == 0 || (target.facts->features & feature) != 0) continue;
    const char* name = flag == MLA_LAUNCH_PDL ? "PDL" : "NON_CAUSAL";
    return invalid_argument("args.flags has MLA_LAUNCH_", name, ", which ", target.kernel,
                            " does not support; select with MLA_FEATURE_", name, ", or leave the flag out");
  }
  return {};
}

Error check_workspace(const ParamsTarget& target, const char* address_field, uint64_t workspace,
                      const char* size_field, uint64_t bytes) {
  if (target.workspace_bytes == 0) return {};
  if (workspace == 0 || workspace % kWorkspaceAlign != 0) {
    return {MLA_ERROR_WORKSPACE, text(address_field, " is ", Hex{workspace},
                                      "; must be a device address aligned to ", kWorkspaceAlign, " bytes")};
  }
  if (bytes < target.workspace_bytes) {
    return {MLA_ERROR_WORKSPACE, text(size_field, " is ", bytes, "; ", target.kernel, " needs ",
                                      target.workspace_bytes, " bytes on device ", target.device)};
  }
  if (bytes - 1 > UINT64_MAX - workspace) {
    return {MLA_ERROR_WORKSPACE, text(address_field, " is ", Hex{workspace}, "; its ", bytes,
                                      " bytes reach past the end of the address space")};
  }
  return {};
}

Error check_rows(const Rows& rows, int64_t* outer_stride, int64_t* inner_stride, __int128* span) {
  const bool dense_inner = *inner_stride == 0;
  if (dense_inner) *inner_stride = rows.row;
  // Limits of strides are below 2^41 and extents below 2^41, so products fit.
  const int64_t most = kMaxStride / rows.unit_bytes;
  if (*inner_stride < rows.row || *inner_stride >= most || *inner_stride % rows.multiple != 0) {
    return invalid_argument("args.", rows.inner_field, " is ", *inner_stride, " ", rows.unit,
                            "; must be 0 (dense) or ", rows.multiple > 1 ? "a multiple of " : "from ",
                            rows.multiple > 1 ? text(rows.multiple, " from ") : "", rows.row,
                            " (one row) to below 2^40 bytes");
  }
  const __int128 inner_span = static_cast<__int128>(rows.inner - 1) * *inner_stride + rows.row;
  if (*outer_stride == 0) {
    const __int128 dense = static_cast<__int128>(rows.inner) * *inner_stride;
    if (dense >= most) {
      return invalid_argument("args.", rows.inner_field, " is ", *inner_stride, " ", rows.unit, "; ",
                              rows.inner, " rows must be below 2^40 bytes");
    }
    *outer_stride = static_cast<int64_t>(dense);
  }
  // Either the inner rows lie together, or the outer ones do.
  const __int128 outer_span = static_cast<__int128>(rows.outer - 1) * *outer_stride;
  const bool interleaved = *outer_stride >= rows.row && *inner_stride >= outer_span + rows.row;
  if ((*outer_stride < inner_span && !interleaved) || *outer_stride >= most ||
      *outer_stride % rows.multiple != 0) {
    return invalid_argument("args.", rows.outer_field, " is ", *outer_stride, " ", rows.unit,
                            "; must be 0 (dense) or ", rows.multiple > 1 ? "a multiple of " : "from ",
                            rows.multiple > 1 ? text(rows.multiple, " from ") : "",
                            static_cast<uint64_t>(inner_span), " to below 2^40 bytes");
  }
  *span = outer_span + inner_span;
  return {};
}

}  // namespace mla::loader

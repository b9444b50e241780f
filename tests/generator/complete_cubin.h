// SPDX-License-Identifier: Apache-2.0
//
// A hand-made cubin with every constant that a kernel of the matrix has.
#pragma once

#include <map>
#include <string>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"
#include "tests/manifest/elf_builder.h"

namespace mla::test {

using Constants = std::map<std::string, uint32_t>;

inline Constants complete_constants() {
  return {{"info_version", cubin::kInfoVersion},
          {"params_version", kParamsVersion},
          {"params_bytes", sizeof(DecodeParams)},
          {"family", cubin::kFamilyCluster},
          {"q_dtype", cubin::kE4M3},
          {"kv_dtype", cubin::kE4M3},
          {"out_dtype", cubin::kBF16},
          {"mma", cubin::kMmaPlain},
          {"rows", 128},
          {"head_dim_k", 576},
          {"head_dim_v", 512},
          {"tile_tokens", 64},
          {"cluster_size", 4},
          {"threads", 384},
          {"dynamic_smem", 100352},
          {"page_size_min", 16},
          {"page_size_max", 128},
          {"k_box", 64},
          {"k_swizzle", 64},
          {"v_box", 128},
          {"v_swizzle", 128},
          {"features", cubin::kFeatureLse},
          {"priority", 3},
          {"carveout", 100}};
}

// Kernel `mla_<name>` for sm_120f; `constants` replaces the two of good_cubin().
inline ElfBuilder complete_cubin(const std::string& name = "cluster_x",
                                 const Constants& constants = complete_constants()) {
  ElfBuilder elf = good_cubin();
  ElfSymbol kernel = elf.symbols.back();
  kernel.name = "mla_" + name;
  elf.sections[kText - 4].name = ".text." + kernel.name;
  elf.sections[kShared - 4].name = ".nv.shared." + kernel.name;
  elf.symbols.clear();
  Bytes& values = elf.sections[kConstant3 - 4].content;
  values.clear();
  // The kernel stays symbol 3, which .nv.info refers to.
  for (const auto& [field, value] : constants) {
    if (elf.symbols.size() == kSymKernel - 1) elf.symbols.push_back(kernel);
    elf.symbols.push_back({"mla_" + field, 1, 0, kConstant3, values.size(), 4});
    append_value(values, value);
  }
  return elf;
}

}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
//
// A hand-made cubin with every constant that a kernel of the matrix has.
#pragma once

#include <map>
#include <string>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"
#include "manifest/fields.h"
#include "tests/manifest/elf_builder.h"

namespace mla::test {

using Constants = std::map<std::string, uint32_t>;

inline cubin::Facts complete_facts() {
  return {.kind = kind::kDECODE,
          .priority = 3,
          .requires_bits = requirement::kROW_TILES,
          .family = family::kCLUSTER,
          .q_dtype = dtype::kE4M3,
          .kv_dtype = dtype::kE4M3,
          .out_dtype = dtype::kBF16,
          .arithmetic = arithmetic::kQUANTISED,
          .mma = mma_form::kPLAIN,
          .cache_layout = cache_layout::kDENSE,
          .rows = 128,
          .head_dim_k = 576,
          .head_dim_v = 512,
          .tile_tokens = 64,
          .page_size_multiple = 16,
          .page_size_max = 128,
          .features = feature::kLSE,
          .tensor_maps = 1,
          .box_tokens = 64,
          .k_box = 64,
          .k_swizzle = 64,
          .v_box = 128,
          .v_swizzle = 128,
          .threads = 384,
          .cluster_size = 4,
          .dynamic_smem = 100352,
          .carveout = 100,
          .item_overhead = 4,
          .min_share = 2,
          .max_flat_merge = 8,
          .zeroed_bytes = 65536,
          .fixed_bytes = 1024,
          .bytes_per_worker = 4096,
          .max_workers = 256,
          .tile_cost = 1000,
          .params_struct = params_struct::kDECODE,
          .params_version = kDecodeParamsVersion,
          .params_bytes = sizeof(DecodeParams)};
}

// The constants of a cubin with these facts.
inline Constants constants_of(const cubin::Facts& facts) {
  Constants constants = {{"info_version", cubin::kInfoVersion}};
  for (const cubin::Field& field : cubin::kFields) {
    if (manifest::applies(field, facts.kind)) {
      constants[field.name] = static_cast<uint32_t>(manifest::get(facts, field));
    }
  }
  return constants;
}

inline Constants complete_constants() { return constants_of(complete_facts()); }

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

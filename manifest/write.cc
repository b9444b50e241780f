// SPDX-License-Identifier: Apache-2.0
//
// In a file of its own so that the loader, which only reads, does not link it.
#include <nlohmann/json.hpp>

#include "manifest/manifest.h"
#include "manifest/words.h"

namespace mla::manifest {

namespace {

using Json = nlohmann::ordered_json;

Json kernel_json(const Kernel& kernel) {
  Json features = Json::object();
  for (const json::Word& feature : kFeatureWords) {
    features[std::string(feature.text)] = (kernel.config.features & feature.number) != 0;
  }
  Json spills;
  if (kernel.resources.spill_bytes != kSpillUnknown) spills = kernel.resources.spill_bytes;
  return {
      {"id", kernel.id},
      {"file", kernel.file},
      {"size", kernel.size},
      {"sha256", kernel.sha256},
      {"target", {{"sm", kernel.target.sm}, {"suffix", kernel.target.suffix}}},
      {"symbol", kernel.symbol},
      {"config",
       {{"family", word_for(kFamilyWords, kernel.config.family)},
        {"mma", word_for(kMmaWords, kernel.config.mma)},
        {"q_dtype", word_for(kDTypeWords, kernel.config.q_dtype)},
        {"kv_dtype", word_for(kDTypeWords, kernel.config.kv_dtype)},
        {"out_dtype", word_for(kDTypeWords, kernel.config.out_dtype)},
        {"rows", kernel.config.rows},
        {"head_dim_k", kernel.config.head_dim_k},
        {"head_dim_v", kernel.config.head_dim_v},
        {"tile_tokens", kernel.config.tile_tokens},
        {"page_size_min", kernel.config.page_size_min},
        {"page_size_max", kernel.config.page_size_max},
        {"k_box", kernel.config.k_box},
        {"k_swizzle", kernel.config.k_swizzle},
        {"v_box", kernel.config.v_box},
        {"v_swizzle", kernel.config.v_swizzle},
        {"features", features}}},
      {"launch",
       {{"threads", kernel.launch.threads},
        {"cluster_size", kernel.launch.cluster_size},
        {"dynamic_smem", kernel.launch.dynamic_smem},
        {"carveout", kernel.launch.carveout}}},
      {"resources",
       {{"registers", kernel.resources.registers},
        {"spill_bytes", spills},
        {"stack_bytes", kernel.resources.stack_bytes},
        {"static_smem", kernel.resources.static_smem}}},
      {"params", {{"version", kernel.params.version}, {"bytes", kernel.params.bytes}}},
      {"min_driver", kernel.min_driver},
      {"priority", kernel.priority},
  };
}

}  // namespace

std::string write(const Manifest& manifest) {
  Json kernels = Json::array();
  for (const Kernel& kernel : manifest.kernels) kernels.push_back(kernel_json(kernel));
  const Json json = {
      {"format", {{"name", kFormatName}, {"major", manifest.format_major}, {"minor", manifest.format_minor}}},
      {"name", manifest.name},
      {"version", manifest.version},
      {"toolkit", manifest.toolkit},
      {"source_hash", manifest.source_hash},
      {"params_version", manifest.params_version},
      {"kernels", kernels},
  };
  return json.dump(2) + "\n";
}

}  // namespace mla::manifest

// SPDX-License-Identifier: Apache-2.0
#include "generator/describe.h"

#include <map>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"
#include "manifest/cubin.h"
#include "manifest/sha256.h"
#include "manifest/words.h"

namespace mla::generator {

namespace {

using Constants = std::map<std::string, uint32_t, std::less<>>;

std::string number(uint64_t value) { return std::to_string(value); }

// The constants of mla_cubin_info.h, by name without "mla_".
Status read_constants(const cubin::Info& info, std::string_view file, Constants* out) {
  std::string missing;
  const auto take = [&](const char* name) {
    const uint32_t* value = info.constant("mla_" + std::string(name));
    if (value == nullptr) {
      missing += (missing.empty() ? "mla_" : ", mla_") + std::string(name);
    } else {
      (*out)[name] = *value;
    }
  };
#define MLA_TAKE(name) take(#name);
  MLA_CUBIN_INFO_FIELDS(MLA_TAKE)
  MLA_CUBIN_BUILD_FIELDS(MLA_TAKE)
#undef MLA_TAKE
  if (missing.empty()) return {};
  return Status::invalid(std::string(file) + ": no constant " + missing +
                         "; expected all of kernels/common/mla_cubin_info.h");
}

// A block or cluster shape along x: the x extent, 0 if there is none; false if it has y or z.
bool along_x(const std::array<uint32_t, 3>& shape, uint32_t* x) {
  *x = shape[0];
  return shape[1] <= 1 && shape[2] <= 1;
}

}  // namespace

std::string cubin_path(std::string_view id) { return "cubins/" + std::string(id) + ".cubin"; }

Status describe(std::span<const std::byte> image, std::string_view file, manifest::Kernel* out,
                std::string* toolkit) {
  const auto fail = [&](const std::string& what) { return Status::invalid(std::string(file) + ": " + what); };
  cubin::Info info;
  if (Status status = cubin::read(image, file, &info); !status.ok()) return status;

  manifest::Kernel kernel;
  if (info.arch.empty())
    return fail("no section .note.nv.tkinfo; expected the toolkit's note, which names the target");
  if (!manifest::parse_target(info.arch, &kernel.target)) {
    return fail("compiled with -arch " + info.arch + "; expected a target such as sm_120f");
  }
  if (kernel.target.sm != info.sm) {
    return fail("the ELF header says sm_" + number(info.sm) + ", the toolkit's note " + info.arch);
  }
  if (info.kernels.size() != 1) return fail("has " + number(info.kernels.size()) + " kernels; expected one");
  const cubin::Kernel& code = info.kernels.front();
  kernel.symbol = code.symbol;
  if (!manifest::is_identifier(kernel.symbol) || !kernel.symbol.starts_with("mla_")) {
    return fail("the kernel is called " + kernel.symbol + "; expected a name that starts with mla_");
  }
  kernel.id = kernel.symbol.substr(4) + "_" + kernel.target.name();
  kernel.file = cubin_path(kernel.id);
  kernel.size = image.size();
  kernel.sha256 = sha256_hex(image);

  Constants constants;
  if (Status status = read_constants(info, file, &constants); !status.ok()) return status;
  if (constants["info_version"] != cubin::kInfoVersion) {
    return fail("mla_info_version is " + number(constants["info_version"]) + "; this program knows " +
                number(cubin::kInfoVersion));
  }
  const std::pair<const char*, std::span<const json::Word>> words[] = {{"family", manifest::kFamilyWords},
                                                                       {"mma", manifest::kMmaWords},
                                                                       {"q_dtype", manifest::kDTypeWords},
                                                                       {"kv_dtype", manifest::kDTypeWords},
                                                                       {"out_dtype", manifest::kDTypeWords}};
  for (const auto& [name, known] : words) {
    if (manifest::word_for(known, constants[name]).empty()) {
      return fail("mla_" + std::string(name) + " is " + number(constants[name]) +
                  ", which stands for nothing in kernels/common/mla_cubin_info.h");
    }
  }
  uint32_t known_features = 0;
  for (const json::Word& word : manifest::kFeatureWords) known_features |= word.number;
  if ((constants["features"] & ~known_features) != 0) {
    return fail("mla_features is " + number(constants["features"]) + "; this program knows the bits " +
                number(known_features));
  }
  manifest::Config& config = kernel.config;
  config.family = constants["family"];
  config.mma = constants["mma"];
  config.q_dtype = constants["q_dtype"];
  config.kv_dtype = constants["kv_dtype"];
  config.out_dtype = constants["out_dtype"];
  config.rows = constants["rows"];
  config.head_dim_k = constants["head_dim_k"];
  config.head_dim_v = constants["head_dim_v"];
  config.tile_tokens = constants["tile_tokens"];
  config.page_size_min = constants["page_size_min"];
  config.page_size_max = constants["page_size_max"];
  config.k_box = constants["k_box"];
  config.k_swizzle = constants["k_swizzle"];
  config.v_box = constants["v_box"];
  config.v_swizzle = constants["v_swizzle"];
  config.features = constants["features"];

  kernel.launch.threads = constants["threads"];
  kernel.launch.cluster_size = constants["cluster_size"];
  kernel.launch.dynamic_smem = constants["dynamic_smem"];
  kernel.launch.carveout = static_cast<int32_t>(constants["carveout"]);
  kernel.priority = static_cast<int32_t>(constants["priority"]);

  // The constants are the kernel's word; what the compiler recorded must agree with it.
  uint32_t block = 0, cluster = 0;
  const bool block_along_x = along_x(code.threads[0] != 0 ? code.threads : code.max_threads, &block);
  if (block == 0) return fail("the kernel has no __launch_bounds__ and no required block size");
  if (!block_along_x || block != kernel.launch.threads) {
    return fail("mla_threads is " + number(kernel.launch.threads) +
                ", the kernel is compiled for blocks of " + number(block) +
                (block_along_x ? " threads" : " threads along x and more along y or z"));
  }
  const bool cluster_along_x = along_x(code.cluster, &cluster);
  if (!cluster_along_x || std::max(cluster, 1u) != kernel.launch.cluster_size) {
    return fail("mla_cluster_size is " + number(kernel.launch.cluster_size) +
                ", the kernel is compiled for clusters of " + number(std::max(cluster, 1u)) +
                (cluster_along_x ? "" : " along x and more along y or z"));
  }
  kernel.params.version = constants["params_version"];
  if (code.params.size() != 1) {
    return fail("the kernel has " + number(code.params.size()) + " parameters; expected one struct");
  }
  kernel.params.bytes = code.params.front().bytes;
  if (kernel.params.bytes != constants["params_bytes"]) {
    return fail("mla_params_bytes is " + number(constants["params_bytes"]) + ", the kernel's parameter has " +
                number(kernel.params.bytes) + " bytes");
  }
  kernel.resources.registers = code.registers;
  kernel.resources.stack_bytes = code.stack_bytes;
  kernel.resources.static_smem = code.static_smem;
  // Spilled registers lie in the stack frame, so without one there are none.
  kernel.resources.spill_bytes = code.stack_bytes == 0 ? 0 : manifest::kSpillUnknown;
  if (Status status = min_driver(info.toolkit, &kernel.min_driver); !status.ok())
    return fail(status.message());
  *out = std::move(kernel);
  *toolkit = info.toolkit;
  return {};
}

std::vector<std::string> compare(const Configuration& asked, const manifest::Kernel& built,
                                 const PtxasReport& report) {
  std::vector<std::string> problems;
  const auto differ = [&](const std::string& what, const std::string& got, const std::string& expected) {
    if (got != expected) problems.push_back(what + ": the cubin says " + got + "; asked for " + expected);
  };
  differ("target", built.target.name(), asked.target.name());
  differ("kernel symbol", built.symbol, asked.symbol);
  differ("family", std::string(manifest::word_for(manifest::kFamilyWords, built.config.family)),
         asked.family);
  differ("parameter struct version", number(built.params.version), number(kParamsVersion));
  differ("parameter bytes", number(built.params.bytes), number(sizeof(DecodeParams)));
  differ("priority", std::to_string(built.priority), std::to_string(asked.priority));
  differ("carveout", std::to_string(built.launch.carveout), std::to_string(asked.carveout));
  const Constants values = {{"q_dtype", built.config.q_dtype},
                            {"kv_dtype", built.config.kv_dtype},
                            {"out_dtype", built.config.out_dtype},
                            {"mma", built.config.mma},
                            {"rows", built.config.rows},
                            {"head_dim_k", built.config.head_dim_k},
                            {"head_dim_v", built.config.head_dim_v},
                            {"tile_tokens", built.config.tile_tokens},
                            {"page_size_min", built.config.page_size_min},
                            {"page_size_max", built.config.page_size_max},
                            {"k_box", built.config.k_box},
                            {"k_swizzle", built.config.k_swizzle},
                            {"v_box", built.config.v_box},
                            {"v_swizzle", built.config.v_swizzle},
                            {"features", built.config.features},
                            {"threads", built.launch.threads},
                            {"cluster_size", built.launch.cluster_size}};
  for (const auto& [name, value] : asked.constants) {
    const auto at = values.find(name);
    differ("mla_" + name, at == values.end() ? "nothing" : number(at->second), number(value));
  }
  if (report.registers != built.resources.registers) {
    problems.push_back("registers: ptxas reported " + number(report.registers) + "; the cubin says " +
                       number(built.resources.registers));
  }
  if (report.stack_bytes != built.resources.stack_bytes) {
    problems.push_back("stack: ptxas reported " + number(report.stack_bytes) + " bytes; the cubin says " +
                       number(built.resources.stack_bytes));
  }
  const auto limit = [&](const std::string& what, uint64_t got, const std::optional<uint32_t>& most) {
    if (most && got > *most) {
      problems.push_back(what + ": " + number(got) + " is more than the limit of " + number(*most));
    }
  };
  limit("registers", built.resources.registers, asked.limits.registers);
  limit("spilled bytes", report.spill_bytes, asked.limits.spill_bytes);
  limit("stack bytes", built.resources.stack_bytes, asked.limits.stack_bytes);
  limit("static shared memory", built.resources.static_smem, asked.limits.static_smem);
  limit("dynamic shared memory", built.launch.dynamic_smem, asked.limits.dynamic_smem);
  limit("cubin bytes", built.size, asked.limits.cubin_bytes);
  if (!report.complaints.empty()) problems.push_back("the assembler complains: " + report.complaints);
  return problems;
}

}  // namespace mla::generator

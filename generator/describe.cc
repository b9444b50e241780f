// SPDX-License-Identifier: Apache-2.0
#include "generator/describe.h"

#include <cstring>
#include <unordered_map>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/cubin.h"
#include "manifest/fields.h"
#include "manifest/sha256.h"
#include "manifest/text.h"
#include "manifest/words.h"

namespace mla::generator {

namespace {

using manifest::Facts;
using manifest::Field;
using manifest::FieldType;

constexpr char kPrefix[] = "mla_";
constexpr char kTable[] = "kernels/common/mla_cubin_info.h";

std::string number(int64_t value) { return std::to_string(value); }

// The facts of the table from the cubin's constants.
Status read_facts(const cubin::Info& info, std::string_view file, Facts* out) {
  const auto fail = [&](const std::string& what) { return Status::invalid(std::string(file) + ": " + what); };
  std::unordered_map<std::string_view, uint32_t> constants;
  for (const auto& [name, value] : info.constants) {
    if (name.starts_with(kPrefix)) constants.emplace(std::string_view(name).substr(strlen(kPrefix)), value);
  }
  const auto version = constants.find("info_version");
  if (version == constants.end())
    return fail("no constant mla_info_version; expected those of " + std::string(kTable));
  if (version->second != cubin::kInfoVersion) {
    return fail("mla_info_version is " + number(version->second) + "; this program knows " +
                number(cubin::kInfoVersion));
  }
  constants.erase(version);
  const auto kind = constants.find("kind");
  if (kind == constants.end()) return fail("no constant mla_kind; expected those of " + std::string(kTable));
  const std::string kind_word(manifest::word_for(manifest::kKindWords, kind->second));
  const uint32_t kind_number = kind->second;
  std::string missing;
  for (const Field& field : cubin::kFields) {
    const auto at = constants.find(field.name);
    if (at == constants.end()) {
      if (manifest::applies(field, kind_number))
        missing += (missing.empty() ? "mla_" : ", mla_") + std::string(field.name);
      continue;
    }
    const int64_t value = field.type == FieldType::integer ? static_cast<int32_t>(at->second)
                                                           : static_cast<int64_t>(at->second);
    constants.erase(at);
    if (!manifest::applies(field, kind_number)) {
      return fail("has the constant mla_" + std::string(field.name) + "; a " + kind_word +
                  " kernel has none");
    }
    if (manifest::is_bits(field.type) && !manifest::is_valid(field, value)) {
      uint32_t known = 0;
      for (const json::Word& word : manifest::words_of(field.type)) known |= word.number;
      return fail("mla_" + std::string(field.name) + " is " + number(value) +
                  "; this program knows the bits " + number(known));
    }
    if (!manifest::is_valid(field, value)) {
      const bool word = !manifest::words_of(field.type).empty();
      return fail("mla_" + std::string(field.name) + " is " + number(value) +
                  (word ? ", which stands for nothing in kernels/common/mla_words.h"
                        : "; expected " + (field.type == FieldType::boolean ? std::string("0 or 1")
                                                                            : manifest::expected(field))));
    }
    manifest::set(out, field, value);
  }
  if (!missing.empty()) {
    return fail("no constant " + missing + "; expected all that " + kTable + " has for a " + kind_word +
                " kernel");
  }
  if (!constants.empty()) {
    return fail("has the constant " + json::quote("mla_" + std::string(constants.begin()->first)) +
                ", which " + kTable + " does not have");
  }
  const std::string wrong = manifest::contradiction(*out);
  return wrong.empty() ? Status() : fail(wrong);
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
    return fail("compiled with -arch " + printable(info.arch) + "; expected a target such as sm_120f");
  }
  if (kernel.target.sm != info.sm) {
    return fail("the ELF header says sm_" + number(info.sm) + ", the toolkit's note " + printable(info.arch));
  }
  if (info.kernels.size() != 1) return fail("has " + number(info.kernels.size()) + " kernels; expected one");
  const cubin::Kernel& code = info.kernels.front();
  kernel.symbol = code.symbol;
  if (!manifest::is_identifier(kernel.symbol) || !kernel.symbol.starts_with("mla_")) {
    return fail("the kernel is called " + printable(kernel.symbol) +
                "; expected a name that starts with mla_");
  }
  kernel.id = kernel.symbol.substr(4) + "_" + kernel.target.name();
  kernel.file = cubin_path(kernel.id);
  kernel.size = image.size();
  kernel.sha256 = sha256_hex(image);

  Facts& facts = kernel.facts;
  if (Status status = read_facts(info, file, &facts); !status.ok()) return status;

  // The constants are the kernel's word; what the compiler recorded must agree with it.
  uint32_t block = 0, cluster = 0;
  const bool block_along_x = along_x(code.threads[0] != 0 ? code.threads : code.max_threads, &block);
  if (block == 0) return fail("the kernel has no __launch_bounds__ and no required block size");
  if (!block_along_x || block != facts.threads) {
    return fail("mla_threads is " + number(facts.threads) + ", the kernel is compiled for blocks of " +
                number(block) + (block_along_x ? " threads" : " threads along x and more along y or z"));
  }
  const bool cluster_along_x = along_x(code.cluster, &cluster);
  if (!cluster_along_x || std::max(cluster, 1u) != facts.cluster_size) {
    return fail("mla_cluster_size is " + number(facts.cluster_size) +
                ", the kernel is compiled for clusters of " + number(std::max(cluster, 1u)) +
                (cluster_along_x ? "" : " along x and more along y or z"));
  }
  if (code.params.size() != 1) {
    return fail("the kernel has " + number(code.params.size()) + " parameters; expected one struct");
  }
  if (code.params.front().bytes != facts.params_bytes) {
    return fail("mla_params_bytes is " + number(facts.params_bytes) + ", the kernel's parameter has " +
                number(code.params.front().bytes) + " bytes");
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
  const auto differ_in = [&](const Field& field, int64_t expected) {
    const int64_t got = manifest::get(built.facts, field);
    if (got != expected) {
      differ("mla_" + std::string(field.name), manifest::spell(field, got), manifest::spell(field, expected));
    }
  };
  differ_in(*manifest::find_field("kind"), asked.kind);
  differ_in(*manifest::find_field("family"), asked.family);
  differ_in(*manifest::find_field("priority"), asked.priority);
  differ_in(*manifest::find_field("carveout"), asked.carveout);
  for (const auto& [field, value] : asked.constants) differ_in(*field, value);
  if (report.registers != built.resources.registers) {
    problems.push_back("registers: ptxas reported " + number(report.registers) + "; the cubin says " +
                       number(built.resources.registers));
  }
  if (report.stack_bytes != built.resources.stack_bytes) {
    problems.push_back("stack: ptxas reported " + number(report.stack_bytes) + " bytes; the cubin says " +
                       number(built.resources.stack_bytes));
  }
  for (const auto& [name, most] : asked.limits) {
    const Field* field = manifest::find_field(name);
    const int64_t got = name == "registers"     ? built.resources.registers
                        : name == "spill_bytes" ? report.spill_bytes
                        : name == "stack_bytes" ? built.resources.stack_bytes
                        : name == "static_smem" ? built.resources.static_smem
                        : name == "cubin_bytes" ? static_cast<int64_t>(built.size)
                        : field != nullptr      ? manifest::get(built.facts, *field)
                                                : 0;
    if (got > most)
      problems.push_back(name + ": " + number(got) + " is more than the limit of " + number(most));
  }
  if (!report.complaints.empty()) problems.push_back("the assembler complains: " + report.complaints);
  return problems;
}

}  // namespace mla::generator

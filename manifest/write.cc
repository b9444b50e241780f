// SPDX-License-Identifier: Apache-2.0
//
// In a file of its own so that the loader, which only reads, does not link it.
#include <nlohmann/json.hpp>

#include "manifest/fields.h"
#include "manifest/manifest.h"
#include "manifest/words.h"

namespace mla::manifest {

namespace {

using Json = nlohmann::ordered_json;

Json field_json(const Field& field, int64_t value) {
  const std::span<const json::Word> words = words_of(field.type);
  Json json;
  switch (field.type) {
    case FieldType::number:
    case FieldType::integer:
    case FieldType::swizzle:
      return value;
    case FieldType::boolean:
      return value != 0;
    case FieldType::feature:
      json = Json::object();
      for (const json::Word& word : words) {
        if ((value & word.number) != 0) json[std::string(word.text)] = true;
      }
      return json;
    case FieldType::requirement:
      json = Json::array();
      for (const json::Word& word : words) {
        if ((value & word.number) != 0) json.push_back(word.text);
      }
      return json;
    default:
      return word_for(words, static_cast<uint32_t>(value));
  }
}

Json kernel_json(const Kernel& kernel) {
  Json spills;
  if (kernel.resources.spill_bytes != kSpillUnknown) spills = kernel.resources.spill_bytes;
  Json json = {{"id", kernel.id}};
  const auto add_fields = [&](bool of_entry) {
    for (const Field& field : cubin::kFields) {
      if ((field.section == std::string_view("kernel")) != of_entry || !applies(field, kernel.facts.kind)) {
        continue;
      }
      const int64_t value = get(kernel.facts, field);
      // Absent is the same.
      if (field.type == FieldType::requirement && value == 0) continue;
      Json& section = of_entry ? json : json[field.section];
      section[std::string(json_key(field))] = field_json(field, value);
    }
  };
  add_fields(true);
  json["file"] = kernel.file;
  json["size"] = kernel.size;
  json["sha256"] = kernel.sha256;
  json["target"] = {{"sm", kernel.target.sm}, {"suffix", kernel.target.suffix}};
  json["symbol"] = kernel.symbol;
  add_fields(false);
  json["resources"] = {{"registers", kernel.resources.registers},
                       {"spill_bytes", spills},
                       {"stack_bytes", kernel.resources.stack_bytes},
                       {"static_smem", kernel.resources.static_smem}};
  json["min_driver"] = kernel.min_driver;
  return json;
}

}  // namespace

std::string write(const Kernel& kernel) { return kernel_json(kernel).dump(2) + "\n"; }

std::string write(const Manifest& manifest) {
  Json kernels = Json::array();
  for (const Kernel& kernel : manifest.kernels) kernels.push_back(kernel_json(kernel));
  const Json json = {
      {"format", {{"name", kFormatName}, {"major", manifest.format_major}, {"minor", manifest.format_minor}}},
      {"name", manifest.name},
      {"version", manifest.version},
      {"toolkit", manifest.toolkit},
      {"source_hash", manifest.source_hash},
      {"kernels", kernels},
  };
  return json.dump(2) + "\n";
}

}  // namespace mla::manifest

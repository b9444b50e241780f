// SPDX-License-Identifier: Apache-2.0
#include "generator/schema.h"

#include <nlohmann/json.hpp>

#include "manifest/fields.h"
#include "manifest/manifest.h"
#include "manifest/words.h"

namespace mla::generator {

namespace {

using Json = nlohmann::ordered_json;
using manifest::Field;
using manifest::FieldType;

const std::string kEntry = "kernel";  // the section that is the entry itself

Json text_of(const char* pattern, uint32_t longest) {
  Json schema = {{"type", "string"}};
  if (longest != 0) schema["maxLength"] = longest;
  schema["pattern"] = pattern;
  return schema;
}

Json integer(int64_t low, int64_t high) { return {{"type", "integer"}, {"minimum", low}, {"maximum", high}}; }

Json reference(const char* name, const char* description) {
  Json schema = {{"$ref", std::string("#/$defs/") + name}};
  if (*description != '\0') schema["description"] = description;
  return schema;
}

Json object(Json properties, Json required) {
  Json schema = {{"type", "object"}, {"required", std::move(required)}};
  if (schema["required"].empty()) schema.erase("required");
  schema["properties"] = std::move(properties);
  return schema;
}

Json word_list(FieldType type) {
  Json list = Json::array();
  for (const json::Word& word : manifest::words_of(type)) list.push_back(word.text);
  return list;
}

Json field_schema(const Field& field) {
  Json schema;
  switch (field.type) {
    case FieldType::number:
    case FieldType::integer:
      schema = integer(field.low, field.high);
      break;
    case FieldType::boolean:
      schema = {{"type", "boolean"}};
      break;
    case FieldType::swizzle:
      schema = {{"enum", manifest::kSwizzles}};
      break;
    case FieldType::feature:
      schema = object(Json::object(), Json::array());
      for (const json::Word& word : manifest::words_of(field.type)) {
        schema["properties"][std::string(word.text)] = {{"type", "boolean"}};
      }
      break;
    case FieldType::requirement:
      schema = {{"type", "array"}, {"items", {{"enum", word_list(field.type)}}}};
      break;
    default:
      schema = {{"enum", word_list(field.type)}};
  }
  schema["description"] = field.meaning;
  return schema;
}

bool may_be_absent(const Field& field) { return manifest::is_bits(field.type); }

// What the entry of a kernel of one kind has besides the properties of every entry.
Json kind_schema(uint32_t kind) {
  Json all = object(Json::object(), Json::array());
  for (const Field& field : cubin::kFields) {
    if (field.section == kEntry || !manifest::applies(field, kind)) continue;
    if (!all["properties"].contains(field.section)) {
      all["properties"][field.section] = object(Json::object(), Json::array());
      all["required"].push_back(field.section);
    }
    Json& section = all["properties"][field.section];
    const std::string key(manifest::json_key(field));
    section["properties"][key] = field_schema(field);
    if (!may_be_absent(field)) section["required"].push_back(key);
  }
  return all;
}

Json kernel_schema() {
  Json properties;
  Json required = {"id", "file", "size", "sha256", "target", "symbol", "resources", "min_driver"};
  properties["id"] = reference("name", "Unique in the bundle.");
  for (const Field& field : cubin::kFields) {
    if (field.section != kEntry) continue;
    const std::string key(manifest::json_key(field));
    properties[key] = field_schema(field);
    if (!may_be_absent(field)) required.push_back(key);
  }
  properties["file"] =
      text_of("^(?!/)(?!(.*/)?[.]{1,2}(/|$))(?!.*//)(?!.*/$)[^\\\\\\u0000-\\u001f\\u007f-\\u009f]+$", 0);
  properties["file"]["description"] = "Path relative to the bundle, forward slashes. Unique in the bundle.";
  properties["size"] = integer(64, manifest::kMaxCubinBytes);
  properties["size"]["description"] = "Bytes of the file.";
  properties["sha256"] = reference("sha256", "Of the file.");
  properties["target"] =
      object({{"sm", integer(50, 999)}, {"suffix", {{"enum", {"", "a", "f"}}}}}, {"sm", "suffix"});
  properties["symbol"] = text_of("^[A-Za-z_][A-Za-z0-9_]*$", 256);
  properties["symbol"]["description"] = "Name of the kernel in the file.";
  Json spills = integer(0, INT32_MAX);
  spills["type"] = {"integer", "null"};
  spills["description"] =
      "Of a thread, the larger of ptxas's spill stores and loads; null: not known, for a cubin does not "
      "tell.";
  properties["resources"] = object({{"registers", integer(1, 255)},
                                    {"spill_bytes", spills},
                                    {"stack_bytes", integer(0, INT32_MAX)},
                                    {"static_smem", integer(0, 1 << 20)}},
                                   {"registers", "spill_bytes", "stack_bytes", "static_smem"});
  properties["min_driver"] = reference("version", "Oldest Linux driver of the toolkit.");
  Json schema = object(std::move(properties), std::move(required));
  Json kinds = Json::array();
  for (const json::Word& word : manifest::kKindWords) {
    kinds.push_back({{"if", {{"properties", {{"kind", {{"const", word.text}}}}}}},
                     {"then", {{"$ref", "#/$defs/" + std::string(word.text)}}}});
  }
  schema["allOf"] = std::move(kinds);
  return schema;
}

}  // namespace

std::string schema_text() {
  Json format = object({{"name", {{"const", manifest::kFormatName}}},
                        {"major", {{"const", manifest::kFormatMajor}}},
                        {"minor", integer(0, INT32_MAX)}},
                       {"name", "major", "minor"});
  Json properties = {
      {"format", std::move(format)},
      {"name", {{"$ref", "#/$defs/name"}}},
      {"version", {{"$ref", "#/$defs/name"}}},
      {"toolkit", reference("version", "CUDA toolkit, for instance 13.0.88.")},
      {"source_hash",
       reference("sha256", "Of the sources and flags that the kernels were built from; zeros: unknown.")},
      {"kernels", {{"type", "array"}, {"items", {{"$ref", "#/$defs/kernel"}}}}},
  };
  Json defs = {{"name", text_of("^[A-Za-z0-9_.+-]{1,128}$", 0)},
               {"version", text_of("^[0-9]+([.][0-9]+)*$", 32)},
               {"sha256", text_of("^[0-9a-f]{64}$", 0)},
               {"kernel", kernel_schema()}};
  for (const json::Word& word : manifest::kKindWords) defs[std::string(word.text)] = kind_schema(word.number);
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"$id", "urn:mla-loader:manifest:" + std::to_string(manifest::kFormatMajor)},
      {"title", "manifest.json of an mla-bundle, format " + std::to_string(manifest::kFormatMajor)},
      {"description",
       "Written by `mla-gen schema` from kernels/common/mla_cubin_info.h. Unknown keys are allowed and "
       "ignored. "
       "A reader takes words beyond those listed here: it passes over that one kernel. Beyond JSON Schema "
       "are: "
       "no key twice in an object, ids and files are unique, and rules between fields (manifest/fields.cc)."},
  };
  const Json rest =
      object(std::move(properties), {"format", "name", "version", "toolkit", "source_hash", "kernels"});
  schema.update(rest);
  schema["$defs"] = std::move(defs);
  return schema.dump(2) + "\n";
}

namespace {

std::string type_text(const Field& field) {
  switch (field.type) {
    case FieldType::feature:
    case FieldType::requirement: {
      std::string text = field.type == FieldType::feature ? "object of booleans, absent = false: "
                                                          : "list of words, absent = empty: ";
      bool first = true;
      for (const json::Word& word : manifest::words_of(field.type)) {
        text += (first ? "`" : ", `") + std::string(word.text) + "`";
        first = false;
      }
      return text;
    }
    case FieldType::number:
    case FieldType::integer:
      return std::to_string(field.low) + " … " + std::to_string(field.high);
    default: {
      const std::span<const json::Word> words = manifest::words_of(field.type);
      if (words.empty()) return manifest::expected(field);
      std::string text;
      for (const json::Word& word : words)
        text += (text.empty() ? "`" : ", `") + std::string(word.text) + "`";
      return text;
    }
  }
}

}  // namespace

std::string field_table() {
  std::string text = "| field | kinds | value | meaning |\n| --- | --- | --- | --- |\n";
  for (const Field& field : cubin::kFields) {
    std::string kinds;
    for (const json::Word& word : manifest::kKindWords) {
      if (manifest::applies(field, word.number))
        kinds += (kinds.empty() ? "" : ", ") + std::string(word.text);
    }
    if (field.kinds == cubin::kKinds_all) kinds = "all";
    std::string path = manifest::json_pointer(field).substr(1);
    std::replace(path.begin(), path.end(), '/', '.');
    text += "| `" + path + "` | " + kinds + " | " + type_text(field) + " | " + field.meaning + " |\n";
  }
  return text;
}

}  // namespace mla::generator

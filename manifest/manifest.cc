// SPDX-License-Identifier: Apache-2.0
#include "manifest/manifest.h"

#include <unordered_map>

#include "manifest/files.h"
#include "manifest/json.h"
#include "manifest/words.h"

namespace mla::manifest {

namespace {

constexpr std::string_view kNameExpected = "1 to 128 letters, digits and _ - . +";
constexpr std::string_view kVersionExpected = "numbers with dots between, for instance \"13.0.88\"";
constexpr std::string_view kHashExpected = "64 lower-case hex digits";
constexpr int64_t kMaxSmem = 1 << 20;

constexpr json::Word kSwizzles[] = {{"0", 0}, {"32", 32}, {"64", 64}, {"128", 128}};

bool is_power_of_two(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

bool read_power_of_two(json::Reader& reader, const json::Value& object, std::string_view name,
                       uint32_t* out) {
  if (!reader.integer(object, name, 1, 1 << 20, out)) return false;
  return is_power_of_two(*out) || reader.mismatch(*object.find(name), "a power of two");
}

bool read_swizzle(json::Reader& reader, const json::Value& object, std::string_view name, uint32_t* out) {
  if (!reader.integer(object, name, 0, 128, out)) return false;
  for (const json::Word& word : kSwizzles) {
    if (word.number == *out) return true;
  }
  return reader.mismatch(*object.find(name), "0, 32, 64 or 128");
}

// As Reader::word. With `unknown` (not null) another word is noted there and read as 0.
bool read_word(json::Reader& reader, const json::Value& object, std::string_view name,
               std::span<const json::Word> words, uint32_t* out, std::string* unknown) {
  const json::Value* value = object.find(name);
  if (unknown == nullptr || value == nullptr || value->type != json::Type::kString) {
    return reader.word(object, name, words, out);
  }
  for (const json::Word& word : words) {
    if (word.text == value->text) return reader.word(object, name, words, out);
  }
  *out = 0;
  *unknown += (unknown->empty() ? "" : ", ") + std::string(name) + " is " + json::quote(value->text);
  return true;
}

bool read_target(json::Reader& reader, const json::Value& kernel, Target* out, std::string* unknown) {
  const json::Value* object = nullptr;
  uint32_t suffix = 0;
  if (!reader.object(kernel, "target", &object) || !reader.integer(*object, "sm", 50, 999, &out->sm) ||
      !read_word(reader, *object, "suffix", kSuffixWords, &suffix, unknown)) {
    return false;
  }
  out->suffix = word_for(kSuffixWords, suffix);
  return true;
}

bool read_config(json::Reader& reader, const json::Value& kernel, Config* out, std::string* unknown) {
  const json::Value* object = nullptr;
  const json::Value* features = nullptr;
  if (!reader.object(kernel, "config", &object)) return false;
  const bool good = read_word(reader, *object, "family", kFamilyWords, &out->family, unknown) &&
                    read_word(reader, *object, "mma", kMmaWords, &out->mma, unknown) &&
                    read_word(reader, *object, "q_dtype", kDTypeWords, &out->q_dtype, unknown) &&
                    read_word(reader, *object, "kv_dtype", kDTypeWords, &out->kv_dtype, unknown) &&
                    read_word(reader, *object, "out_dtype", kDTypeWords, &out->out_dtype, unknown) &&
                    reader.integer(*object, "rows", 1, 1024, &out->rows) &&
                    reader.integer(*object, "head_dim_k", 1, 65536, &out->head_dim_k) &&
                    reader.integer(*object, "head_dim_v", 1, 65536, &out->head_dim_v) &&
                    reader.integer(*object, "tile_tokens", 1, 65536, &out->tile_tokens) &&
                    read_power_of_two(reader, *object, "page_size_min", &out->page_size_min) &&
                    read_power_of_two(reader, *object, "page_size_max", &out->page_size_max) &&
                    reader.integer(*object, "k_box", 1, 256, &out->k_box) &&
                    read_swizzle(reader, *object, "k_swizzle", &out->k_swizzle) &&
                    reader.integer(*object, "v_box", 1, 256, &out->v_box) &&
                    read_swizzle(reader, *object, "v_swizzle", &out->v_swizzle) &&
                    reader.object(*object, "features", &features);
  if (!good) return false;
  if (out->page_size_min > out->page_size_max) {
    return reader.mismatch(*object->find("page_size_min"),
                           "at most page_size_max, " + std::to_string(out->page_size_max));
  }
  out->features = 0;
  for (const json::Word& feature : kFeatureWords) {
    bool has = false;
    if (!reader.boolean(*features, feature.text, &has)) return false;
    if (has) out->features |= feature.number;
  }
  return true;
}

bool read_launch(json::Reader& reader, const json::Value& kernel, Launch* out) {
  const json::Value* object = nullptr;
  if (!reader.object(kernel, "launch", &object) ||
      !reader.integer(*object, "threads", 32, 1024, &out->threads) ||
      !reader.integer(*object, "cluster_size", 1, 16, &out->cluster_size) ||
      !reader.integer(*object, "dynamic_smem", 0, kMaxSmem, &out->dynamic_smem) ||
      !reader.integer(*object, "carveout", -1, 100, &out->carveout)) {
    return false;
  }
  return out->threads % 32 == 0 || reader.mismatch(*object->find("threads"), "a multiple of 32");
}

bool read_resources(json::Reader& reader, const json::Value& kernel, Resources* out) {
  const json::Value* object = nullptr;
  if (!reader.object(kernel, "resources", &object) ||
      !reader.integer(*object, "registers", 1, 255, &out->registers)) {
    return false;
  }
  const json::Value* spills = reader.member(*object, "spill_bytes", "an integer or null");
  if (spills == nullptr) return false;
  if (spills->type == json::Type::kNull) {
    out->spill_bytes = kSpillUnknown;
  } else if (!reader.integer(*object, "spill_bytes", 0, INT32_MAX, &out->spill_bytes)) {
    return false;
  }
  return reader.integer(*object, "stack_bytes", 0, INT32_MAX, &out->stack_bytes) &&
         reader.integer(*object, "static_smem", 0, kMaxSmem, &out->static_smem);
}

bool read_params(json::Reader& reader, const json::Value& kernel, uint32_t version, ParamLayout* out) {
  const json::Value* object = nullptr;
  if (!reader.object(kernel, "params", &object) ||
      !reader.integer(*object, "version", 1, INT32_MAX, &out->version) ||
      !reader.integer(*object, "bytes", 1, 32764, &out->bytes)) {
    return false;
  }
  return out->version == version ||
         reader.mismatch(*object->find("version"), std::to_string(version) + ", the bundle's params_version");
}

bool read_kernel(json::Reader& reader, const json::Value& value, uint32_t params_version,
                 UnknownWords unknown_words, Kernel* out) {
  std::string* const unknown = unknown_words == UnknownWords::kKeep ? &out->unknown_words : nullptr;
  if (value.type != json::Type::kObject) return reader.mismatch(value, "an object");
  if (!reader.text(value, "id", is_name, kNameExpected, &out->id)) return false;
  const json::Value* file = reader.member(value, "file", "a path relative to the bundle");
  if (file == nullptr) return false;
  if (file->type != json::Type::kString) return reader.mismatch(*file, "a path relative to the bundle");
  if (std::string error = files::relative_path_error(file->text); !error.empty()) {
    return reader.fail(*file, json::quote(file->text) + " " + error);
  }
  out->file = file->text;
  return reader.integer(value, "size", 64, int64_t{1} << 30, &out->size) &&
         reader.text(value, "sha256", is_sha256, kHashExpected, &out->sha256) &&
         read_target(reader, value, &out->target, unknown) &&
         reader.text(value, "symbol", is_identifier, "a C identifier", &out->symbol) &&
         read_config(reader, value, &out->config, unknown) && read_launch(reader, value, &out->launch) &&
         read_resources(reader, value, &out->resources) &&
         read_params(reader, value, params_version, &out->params) &&
         reader.text(value, "min_driver", is_version, kVersionExpected, &out->min_driver) &&
         reader.integer(value, "priority", -1000000, 1000000, &out->priority);
}

bool read_format(json::Reader& reader, const json::Value& root, Manifest* out) {
  const json::Value* format = nullptr;
  std::string name;
  if (root.type != json::Type::kObject) return reader.mismatch(root, "an object");
  if (!reader.object(root, "format", &format) ||
      !reader.text(
          *format, "name", [](std::string_view text) { return text == kFormatName; },
          "\"" + std::string(kFormatName) + "\"", &name) ||
      !reader.integer(*format, "major", 0, INT32_MAX, &out->format_major) ||
      !reader.integer(*format, "minor", 0, INT32_MAX, &out->format_minor)) {
    return false;
  }
  return out->format_major == kFormatMajor ||
         reader.mismatch(*format->find("major"),
                         std::to_string(kFormatMajor) + "; this program cannot read other major versions");
}

bool read_manifest(json::Reader& reader, const json::Value& root, UnknownWords unknown_words, Manifest* out) {
  const json::Value* kernels = nullptr;
  if (!read_format(reader, root, out) || !reader.text(root, "name", is_name, kNameExpected, &out->name) ||
      !reader.text(root, "version", is_name, kNameExpected, &out->version) ||
      !reader.text(root, "toolkit", is_version, kVersionExpected, &out->toolkit) ||
      !reader.text(root, "source_hash", is_sha256, kHashExpected, &out->source_hash) ||
      !reader.integer(root, "params_version", 1, INT32_MAX, &out->params_version) ||
      !reader.array(root, "kernels", &kernels)) {
    return false;
  }
  out->kernels.reserve(kernels->children);
  std::unordered_map<std::string, uint32_t> ids, files;
  for (const json::Value* value = kernels->first; value != nullptr; value = value->next) {
    Kernel& kernel = out->kernels.emplace_back();
    if (!read_kernel(reader, *value, out->params_version, unknown_words, &kernel)) return false;
    if (const auto [at, fresh] = ids.emplace(kernel.id, value->index); !fresh) {
      return reader.mismatch(*value->find("id"),
                             "an id of its own; /kernels/" + std::to_string(at->second) + " has the same");
    }
    if (const auto [at, fresh] = files.emplace(kernel.file, value->index); !fresh) {
      return reader.mismatch(*value->find("file"),
                             "a file of its own; /kernels/" + std::to_string(at->second) + " has the same");
    }
  }
  return true;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string Target::name() const { return "sm_" + std::to_string(sm) + suffix; }

Status parse(std::string_view text, std::string_view file, Manifest* out, UnknownWords unknown_words) {
  json::Document document;
  if (Status status = json::Document::parse(text, file, &document); !status.ok()) return status;
  json::Reader reader(file);
  Manifest manifest;
  if (!read_manifest(reader, document.root(), unknown_words, &manifest)) return reader.status();
  *out = std::move(manifest);
  return {};
}

bool is_name(std::string_view text) {
  if (text.empty() || text.size() > 128) return false;
  for (char c : text) {
    if (!is_letter(c) && !is_digit(c) && c != '_' && c != '-' && c != '.' && c != '+') return false;
  }
  return true;
}

bool is_identifier(std::string_view text) {
  if (text.empty() || text.size() > 256 || is_digit(text.front())) return false;
  for (char c : text) {
    if (!is_letter(c) && !is_digit(c) && c != '_') return false;
  }
  return true;
}

bool is_version(std::string_view text) {
  if (text.empty() || text.size() > 32 || !is_digit(text.front()) || !is_digit(text.back())) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(text[i]) && (text[i] != '.' || text[i - 1] == '.')) return false;
  }
  return true;
}

bool is_sha256(std::string_view text) {
  if (text.size() != 64) return false;
  for (char c : text) {
    if (!is_digit(c) && (c < 'a' || c > 'f')) return false;
  }
  return true;
}

bool parse_target(std::string_view text, Target* out) {
  if (text.substr(0, 3) != "sm_") return false;
  text.remove_prefix(3);
  Target target;
  size_t digits = 0;
  while (digits < text.size() && digits < 3 && is_digit(text[digits])) {
    target.sm = target.sm * 10 + static_cast<uint32_t>(text[digits++] - '0');
  }
  target.suffix = text.substr(digits);
  if (digits < 2 || text.front() == '0') return false;
  if (!target.suffix.empty() && target.suffix != "a" && target.suffix != "f") return false;
  *out = target;
  return true;
}

}  // namespace mla::manifest

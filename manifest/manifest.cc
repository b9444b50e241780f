// SPDX-License-Identifier: Apache-2.0
#include "manifest/manifest.h"

#include <unordered_map>

#include "manifest/fields.h"
#include "manifest/files.h"
#include "manifest/json.h"
#include "manifest/words.h"

namespace mla::manifest {

namespace {

constexpr std::string_view kNameExpected = "1 to 128 letters, digits and _ - . +";
constexpr std::string_view kVersionExpected = "numbers with dots between, for instance \"13.0.88\"";
constexpr std::string_view kHashExpected = "64 lower-case hex digits";
constexpr int64_t kMaxSmem = 1 << 20;

// What a kernel's entry has that this reader does not know.
class Unknown {
 public:
  // `what` is a clause: `its kind is "tree"`.
  void add(const std::string& what) {
    if (++count_ <= kMost) text_ += (text_.empty() ? "" : ", ") + what;
  }
  std::string reason() const {
    if (count_ == 0) return "";
    return text_ + (count_ > kMost ? " and " + std::to_string(count_ - kMost) + " more" : "") +
           ", which this program does not know";
  }

 private:
  static constexpr size_t kMost = 4;
  std::string text_;
  size_t count_ = 0;
};

// As Reader::word, but another word than those known is noted and read as 0.
bool read_word(json::Reader& reader, const json::Value& object, std::string_view name,
               std::string_view called, std::span<const json::Word> words, uint32_t* out, Unknown* unknown) {
  const json::Value* value = object.find(name);
  if (value == nullptr || value->type != json::Type::kString || find_word(words, value->text) != nullptr) {
    return reader.word(object, name, words, out);
  }
  *out = 0;
  unknown->add("its " + std::string(called) + " is " + json::quote(value->text));
  return true;
}

bool read_target(json::Reader& reader, const json::Value& kernel, Target* out, Unknown* unknown) {
  const json::Value* object = nullptr;
  uint32_t suffix = 0;
  if (!reader.object(kernel, "target", &object) || !reader.integer(*object, "sm", 50, 999, &out->sm) ||
      !read_word(reader, *object, "suffix", "target suffix", kSuffixWords, &suffix, unknown)) {
    return false;
  }
  out->suffix = word_for(kSuffixWords, suffix);
  return true;
}

// An object of booleans; absent: false.
bool read_features(json::Reader& reader, const json::Value& section, const Field& field, uint32_t* out,
                   Unknown* unknown) {
  const json::Value* object = nullptr;
  if (section.find(json_key(field)) == nullptr) return true;
  if (!reader.object(section, json_key(field), &object)) return false;
  for (const json::Value* child = object->first; child != nullptr; child = child->next) {
    const json::Word* word = find_word(words_of(field.type), child->key);
    bool has = false;
    if (word != nullptr) {
      if (!reader.boolean(*object, child->key, &has)) return false;
      if (has) *out |= word->number;
    } else if (child->type != json::Type::kBool || child->boolean) {
      unknown->add("it has the feature " + json::quote(child->key));
    }
  }
  return true;
}

// A list of words; absent: empty.
bool read_requirements(json::Reader& reader, const json::Value& section, const Field& field, uint32_t* out,
                       Unknown* unknown) {
  const json::Value* list = nullptr;
  if (section.find(json_key(field)) == nullptr) return true;
  if (!reader.array(section, json_key(field), &list)) return false;
  for (const json::Value* child = list->first; child != nullptr; child = child->next) {
    if (child->type != json::Type::kString) return reader.mismatch(*child, "a word");
    const json::Word* word = find_word(words_of(field.type), child->text);
    if (word != nullptr) {
      *out |= word->number;
    } else {
      unknown->add("it requires " + json::quote(child->text));
    }
  }
  return true;
}

bool read_field(json::Reader& reader, const json::Value& section, const Field& field, Facts* out,
                Unknown* unknown) {
  const std::string_view key = json_key(field);
  int64_t value = 0;
  uint32_t bits = 0;
  bool boolean = false;
  switch (field.type) {
    case FieldType::number:
    case FieldType::integer:
      if (!reader.integer(section, key, field.low, field.high, &value)) return false;
      break;
    case FieldType::boolean:
      if (!reader.boolean(section, key, &boolean)) return false;
      value = boolean;
      break;
    case FieldType::swizzle:
      if (!reader.integer(section, key, field.low, field.high, &value)) return false;
      if (!is_valid(field, value)) return reader.mismatch(*section.find(key), expected(field));
      break;
    case FieldType::feature:
      if (!read_features(reader, section, field, &bits, unknown)) return false;
      value = bits;
      break;
    case FieldType::requirement:
      if (!read_requirements(reader, section, field, &bits, unknown)) return false;
      value = bits;
      break;
    default:
      if (!read_word(reader, section, key, field.name, words_of(field.type), &bits, unknown)) return false;
      value = bits;
  }
  set(out, field, value);
  return true;
}

// The fields of the table that are in the entry itself (`in_entry`) or in its sections.
bool read_fields(json::Reader& reader, const json::Value& kernel, bool in_entry, Facts* out,
                 Unknown* unknown) {
  std::string_view name = "kernel";
  const json::Value* section = &kernel;
  for (const Field& field : cubin::kFields) {
    if ((field.section == std::string_view("kernel")) != in_entry || !applies(field, out->kind)) continue;
    if (name != field.section) {
      name = field.section;
      if (!reader.object(kernel, name, &section)) return false;
    }
    if (!read_field(reader, *section, field, out, unknown)) return false;
  }
  return true;
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

bool read_kernel(json::Reader& reader, const json::Value& value, Kernel* out) {
  if (value.type != json::Type::kObject) return reader.mismatch(value, "an object");
  if (!reader.text(value, "id", is_name, kNameExpected, &out->id)) return false;
  const json::Value* file = reader.member(value, "file", "a path relative to the bundle");
  if (file == nullptr) return false;
  if (file->type != json::Type::kString) return reader.mismatch(*file, "a path relative to the bundle");
  if (std::string error = files::relative_path_error(file->text); !error.empty()) {
    return reader.fail(*file, json::quote(file->text) + " " + error);
  }
  out->file = file->text;
  Unknown unknown;
  const bool good = reader.integer(value, "size", 64, kMaxCubinBytes, &out->size) &&
                    reader.text(value, "sha256", is_sha256, kHashExpected, &out->sha256) &&
                    read_target(reader, value, &out->target, &unknown) &&
                    reader.text(value, "symbol", is_identifier, "a C identifier", &out->symbol) &&
                    reader.text(value, "min_driver", is_version, kVersionExpected, &out->min_driver) &&
                    read_resources(reader, value, &out->resources);
  if (!good) return false;
  // What must be understood comes first: without it nothing else can be relied on.
  Unknown entry;
  if (!read_fields(reader, value, true, &out->facts, &entry)) return false;
  out->unknown = entry.reason();
  if (!out->unknown.empty()) return true;
  if (!read_fields(reader, value, false, &out->facts, &unknown)) return false;
  out->unknown = unknown.reason();
  const std::string wrong = contradiction(out->facts);
  return wrong.empty() || reader.fail(value, wrong);
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

bool read_manifest(json::Reader& reader, const json::Value& root, Manifest* out) {
  const json::Value* kernels = nullptr;
  if (!read_format(reader, root, out) || !reader.text(root, "name", is_name, kNameExpected, &out->name) ||
      !reader.text(root, "version", is_name, kNameExpected, &out->version) ||
      !reader.text(root, "toolkit", is_version, kVersionExpected, &out->toolkit) ||
      !reader.text(root, "source_hash", is_sha256, kHashExpected, &out->source_hash) ||
      !reader.array(root, "kernels", &kernels)) {
    return false;
  }
  out->kernels.reserve(kernels->children);
  std::unordered_map<std::string, uint32_t> ids, files;
  for (const json::Value* value = kernels->first; value != nullptr; value = value->next) {
    Kernel& kernel = out->kernels.emplace_back();
    if (!read_kernel(reader, *value, &kernel)) return false;
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

Status parse(std::string_view text, std::string_view file, Manifest* out) {
  json::Document document;
  if (Status status = json::Document::parse(text, file, &document); !status.ok()) return status;
  json::Reader reader(file);
  Manifest manifest;
  if (!read_manifest(reader, document.root(), &manifest)) return reader.status();
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

// SPDX-License-Identifier: Apache-2.0
#include "generator/matrix.h"

#include <regex.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "manifest/fields.h"
#include "manifest/files.h"
#include "manifest/json.h"
#include "manifest/words.h"

namespace mla::generator {

namespace {

using json::Reader;
using json::Type;
using json::Value;
using manifest::Field;
using manifest::FieldType;
using Names = std::initializer_list<std::string_view>;

constexpr std::string_view kTargetAxis = "target";
constexpr std::string_view kMatrixName = "mla-matrix";
constexpr int64_t kMatrixMajor = 1;

bool only(Reader& reader, const Value& object, Names names) {
  return reader.only(object, std::span(names.begin(), names.size()));
}

bool is_text(std::string_view text) { return !text.empty(); }
// Parts of an id: they become parts of a C identifier and of a file name.
bool is_id_part(std::string_view text) {
  return !text.empty() && text.size() <= 32 && manifest::is_identifier("_" + std::string(text));
}
bool is_define(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == ':' || c == '-' || c == '.';
  });
}

bool read_optional_text(Reader& reader, const Value& object, std::string_view name,
                        bool (*valid)(std::string_view), std::string_view expected, std::string* out) {
  return object.find(name) == nullptr || reader.text(object, name, valid, expected, out);
}

// Every place that changes what is built has to say why.
bool read_why(Reader& reader, const Value& object, std::string* out) {
  return reader.text(object, "why", is_text, "the reason, in words", out);
}

// "is": what the manifest would say: a word, a number, true or false, a list of words.
bool read_is(Reader& reader, const Value& value, const Field& field, uint32_t* out) {
  const std::span<const json::Word> words = manifest::words_of(field.type);
  if (manifest::is_bits(field.type)) {
    const Value* list = nullptr;
    if (!reader.array(value, "is", &list)) return false;
    for (const Value* item = list->first; item != nullptr; item = item->next) {
      const json::Word* word = item->type == Type::kString ? manifest::find_word(words, item->text) : nullptr;
      if (word == nullptr) return reader.mismatch(*item, json::one_of(words));
      *out |= word->number;
    }
    return true;
  }
  if (!words.empty()) return reader.word(value, "is", words, out);
  if (field.type == FieldType::boolean) {
    bool is = false;
    if (!reader.boolean(value, "is", &is)) return false;
    *out = is ? 1 : 0;
    return true;
  }
  int64_t is = 0;
  if (!reader.integer(value, "is", field.low, field.high, &is)) return false;
  *out = static_cast<uint32_t>(is);
  return manifest::is_valid(field, is) || reader.mismatch(*value.find("is"), manifest::expected(field));
}

// Constants that an axis may fix: all but what stands elsewhere in the matrix (kind, family,
// priority, carveout) and what follows from the parameter struct.
bool is_axis_constant(std::string_view text) {
  const Field* field = manifest::find_field(text);
  return field != nullptr && field->section != std::string_view("kernel") &&
         field->section != std::string_view("params") && text != "family" && text != "carveout";
}

// What a limit can be set for besides numbers of the field table.
constexpr std::string_view kResourceLimits[] = {"registers", "spill_bytes", "stack_bytes", "static_smem",
                                                "cubin_bytes"};

bool is_limit(std::string_view text, uint32_t kind) {
  if (std::find(std::begin(kResourceLimits), std::end(kResourceLimits), text) != std::end(kResourceLimits)) {
    return true;
  }
  const Field* field = manifest::find_field(text);
  return field != nullptr && field->type == FieldType::number && manifest::applies(*field, kind);
}

bool read_axis(Reader& reader, const Value& value, uint32_t kind, Axis* out) {
  if (!only(reader, value, {"name", "constant", "macro", "why", "values"})) return false;
  const Value* values = nullptr;
  std::string why, constant;
  if (!reader.text(value, "name", is_id_part, "1 to 32 letters, digits and _", &out->name) ||
      !read_optional_text(reader, value, "constant", is_axis_constant,
                          "a constant of a configuration, for instance \"rows\"", &constant) ||
      !read_optional_text(reader, value, "macro", manifest::is_identifier, "a C identifier", &out->macro) ||
      !reader.array(value, "values", &values)) {
    return false;
  }
  out->constant = constant.empty() ? nullptr : manifest::find_field(constant);
  if (out->constant != nullptr && !manifest::applies(*out->constant, kind)) {
    return reader.mismatch(
        *value.find("constant"),
        "a constant of a " + std::string(manifest::word_for(manifest::kKindWords, kind)) + " kernel");
  }
  if (out->name == kTargetAxis)
    return reader.mismatch(*value.find("name"), "another name; targets stand in /targets");
  if (values->children == 0) return reader.fail(*values, "no value; expected at least one");
  if (!out->macro.empty() && !read_why(reader, value, &why)) return false;
  if (out->macro.empty() && values->children > 1) {
    return reader.fail(value, "several values and no \"macro\": they would compile to the same code");
  }
  for (const Value* item = values->first; item != nullptr; item = item->next) {
    AxisValue& entry = out->values.emplace_back();
    if (!only(reader, *item, {"id", "is", "define"}) ||
        !reader.text(*item, "id", is_id_part, "1 to 32 letters, digits and _", &entry.id)) {
      return false;
    }
    if (out->constant == nullptr ? item->find("is") != nullptr
                                 : !read_is(reader, *item, *out->constant, &entry.is)) {
      return reader.fail(*item, "\"is\" without a \"constant\" of the axis");
    }
    if (out->macro.empty()) {
      if (item->find("define") != nullptr)
        return reader.fail(*item, "\"define\" without a \"macro\" of the axis");
    } else if (!reader.text(*item, "define", is_define, "the value of the macro, without spaces",
                            &entry.define)) {
      return false;
    }
    for (const AxisValue& other : out->values) {
      if (&other == &entry) continue;
      if (other.id == entry.id) return reader.mismatch(*item->find("id"), "an id of its own within the axis");
      if (!out->macro.empty() && other.define == entry.define) {
        return reader.mismatch(
            *item->find("define"),
            "a value of its own: \"" + other.id + "\" has the same and would compile to the same code");
      }
    }
  }
  return true;
}

// {"axis": ["value", ...], "target": [...]}: every name and value must be known, except that a
// condition may name targets that this matrix does not build.
bool read_condition(Reader& reader, const Value& object, const Family& family, Condition* out) {
  if (object.type != Type::kObject) return reader.mismatch(object, "an object of axes and their values");
  for (const Value* member = object.first; member != nullptr; member = member->next) {
    const auto axis = std::find_if(family.axes.begin(), family.axes.end(),
                                   [&](const Axis& one) { return one.name == member->key; });
    if (axis == family.axes.end() && member->key != kTargetAxis) {
      std::string known;
      for (const Axis& one : family.axes) known += one.name + ", ";
      return reader.fail(*member,
                         "no axis " + json::quote(member->key) + "; expected one of " + known + "target");
    }
    if (member->type != Type::kArray || member->children == 0) {
      return reader.mismatch(*member, "an array of at least one value");
    }
    std::vector<std::string>& allowed = out->allowed[std::string(member->key)];
    for (const Value* item = member->first; item != nullptr; item = item->next) {
      if (item->type != Type::kString) return reader.mismatch(*item, "the id of a value");
      if (axis == family.axes.end()) {
        manifest::Target target;
        if (!manifest::parse_target(item->text, &target)) {
          return reader.mismatch(*item, "a target, for instance \"sm_120f\"");
        }
      } else if (std::none_of(axis->values.begin(), axis->values.end(),
                              [&](const AxisValue& value) { return value.id == item->text; })) {
        return reader.fail(*item, "axis " + axis->name + " has no value " + json::quote(item->text));
      }
      allowed.emplace_back(item->text);
    }
  }
  return true;
}

// Visits the objects of the optional array `name`.
template <typename Visit>
bool each(Reader& reader, const Value& object, std::string_view name, Visit visit) {
  if (object.find(name) == nullptr) return true;
  const Value* array = nullptr;
  if (!reader.array(object, name, &array)) return false;
  for (const Value* item = array->first; item != nullptr; item = item->next) {
    if (item->type != Type::kObject) return reader.mismatch(*item, "an object");
    if (!visit(*item)) return false;
  }
  return true;
}

bool read_limits(Reader& reader, const Value& object, uint32_t kind, Limits* out) {
  for (const Value* member = object.first; member != nullptr; member = member->next) {
    if (!is_limit(member->key, kind)) {
      std::string known;
      for (std::string_view name : kResourceLimits) known += std::string(name) + ", ";
      return reader.fail(object, "no limit " + json::quote(member->key) + "; expected one of " + known +
                                     "or a number of kernels/common/mla_cubin_info.h");
    }
    uint32_t value = 0;
    if (!reader.integer(object, member->key, 0, INT32_MAX, &value)) return false;
    (*out)[std::string(member->key)] = value;
  }
  return true;
}

// Flags that would make a bundle differ from folder to folder, or that the generator itself sets.
std::string flag_error(std::string_view flag) {
  if (flag.size() < 2 || flag.front() != '-') return "expected an option of nvcc, starting with -";
  for (unsigned char c : flag) {
    if (!std::isalnum(c) &&
        std::string_view("-_=,.:+").find(static_cast<char>(c)) == std::string_view::npos) {
      return "expected letters, digits and - _ = , . : +";
    }
  }
  for (std::string_view bad : {"-maxrregcount", "--maxrregcount"}) {
    if (flag.substr(0, flag.find('=')) == bad)
      return "say it in the kernel, with __launch_bounds__ or __maxnreg__";
  }
  for (std::string_view bad :
       {"-lineinfo", "--generate-line-info", "-g", "-G", "--debug", "--device-debug"}) {
    if (flag == bad) return "line information holds paths, so the bytes would differ from folder to folder";
  }
  for (std::string_view bad :
       {"-arch", "--gpu-architecture", "-code", "--gpu-code", "-gencode", "--generate-code", "-o", "-cubin",
        "--cubin", "-ptx", "--ptx", "-M", "-std", "--std", "-I", "-x", "-c"}) {
    if (flag.substr(0, flag.find('=')) == bad) return "set by the generator itself";
  }
  return "";
}

bool read_flags(Reader& reader, const Value& family, std::vector<std::string>* out) {
  if (family.find("flags") == nullptr) return true;
  const Value* flags = nullptr;
  if (!reader.array(family, "flags", &flags)) return false;
  for (const Value* item = flags->first; item != nullptr; item = item->next) {
    if (item->type != Type::kString) return reader.mismatch(*item, "an option of nvcc");
    if (std::string error = flag_error(item->text); !error.empty()) {
      return reader.fail(*item, json::quote(item->text) + ": " + error);
    }
    out->emplace_back(item->text);
  }
  return true;
}

bool read_family(Reader& reader, const Value& value, Family* out) {
  if (value.type != Type::kObject) return reader.mismatch(value, "an object");
  out->kind = kind::kDECODE;
  if (!only(reader, value,
            {"name", "kind", "source", "flags", "carveout", "axes", "rules", "priorities", "limits"}) ||
      !reader.word(value, "name", manifest::kFamilyWords, &out->family) ||
      (value.find("kind") != nullptr && !reader.word(value, "kind", manifest::kKindWords, &out->kind))) {
    return false;
  }
  out->name = manifest::word_for(manifest::kFamilyWords, out->family);
  if (!reader.text(value, "source", is_text, "a path relative to the source folder", &out->source))
    return false;
  if (std::string error = files::relative_path_error(out->source, "the source folder"); !error.empty()) {
    return reader.fail(*value.find("source"), json::quote(out->source) + " " + error);
  }
  if (!is_define("x" + out->source.substr(out->source.rfind('/') + 1)) ||
      out->source.find_first_of(" \"'$") != std::string::npos) {
    return reader.mismatch(*value.find("source"), "a path of letters, digits and _ - . /");
  }
  if (!read_flags(reader, value, &out->flags) ||
      !reader.integer(value, "carveout", -1, 100, &out->carveout)) {
    return false;
  }
  const auto axis = [&](const Value& item) {
    Axis one;
    if (!read_axis(reader, item, out->kind, &one)) return false;
    for (const Axis& other : out->axes) {
      if (other.name == one.name) return reader.mismatch(*item.find("name"), "a name of its own");
      if (!one.macro.empty() && other.macro == one.macro) {
        return reader.mismatch(*item.find("macro"),
                               "a macro of its own; axis " + other.name + " has the same");
      }
      if (one.constant != nullptr && other.constant == one.constant) {
        return reader.mismatch(*item.find("constant"),
                               "a constant of its own; axis " + other.name + " has the same");
      }
    }
    out->axes.push_back(std::move(one));
    return true;
  };
  if (!reader.member(value, "axes", "an array of axes") || !each(reader, value, "axes", axis)) return false;
  const auto rule = [&](const Value& item) {
    Rule& one = out->rules.emplace_back();
    const Value *when = nullptr, *require = nullptr;
    return only(reader, item, {"when", "require", "why"}) && reader.object(item, "when", &when) &&
           read_condition(reader, *when, *out, &one.when) && reader.object(item, "require", &require) &&
           read_condition(reader, *require, *out, &one.require) && read_why(reader, item, &one.why);
  };
  const auto priority = [&](const Value& item) {
    PriorityRule& one = out->priorities.emplace_back();
    const Value* when = nullptr;
    std::string why;
    return only(reader, item, {"when", "priority", "why"}) && reader.object(item, "when", &when) &&
           read_condition(reader, *when, *out, &one.when) &&
           reader.integer(item, "priority", -1000000, 1000000, &one.priority) && read_why(reader, item, &why);
  };
  const auto limit = [&](const Value& item) {
    LimitRule& one = out->limits.emplace_back();
    const Value *when = nullptr, *max = nullptr;
    std::string why;
    if (!only(reader, item, {"when", "max", "why"})) return false;
    if (item.find("when") != nullptr &&
        (!reader.object(item, "when", &when) || !read_condition(reader, *when, *out, &one.when))) {
      return false;
    }
    return reader.object(item, "max", &max) && read_limits(reader, *max, out->kind, &one.max) &&
           read_why(reader, item, &why);
  };
  return each(reader, value, "rules", rule) && each(reader, value, "priorities", priority) &&
         each(reader, value, "limits", limit);
}

bool read_matrix(Reader& reader, const Value& root, Matrix* out) {
  const Value *format = nullptr, *bundle = nullptr, *targets = nullptr, *families = nullptr;
  std::string name;
  int64_t major = 0;
  constexpr std::string_view kNameExpected = "1 to 128 letters, digits and _ - . +";
  if (!only(reader, root, {"format", "bundle", "targets", "families"}) ||
      !reader.object(root, "format", &format) || !only(reader, *format, {"name", "major"}) ||
      !reader.text(
          *format, "name", [](std::string_view text) { return text == kMatrixName; }, "\"mla-matrix\"",
          &name) ||
      !reader.integer(*format, "major", kMatrixMajor, kMatrixMajor, &major) ||
      !reader.object(root, "bundle", &bundle) || !only(reader, *bundle, {"name", "version"}) ||
      !reader.text(*bundle, "name", manifest::is_name, kNameExpected, &out->name) ||
      !reader.text(*bundle, "version", manifest::is_name, kNameExpected, &out->version) ||
      !reader.object(root, "targets", &targets) || !reader.array(root, "families", &families)) {
    return false;
  }
  for (const Value* item = targets->first; item != nullptr; item = item->next) {
    manifest::Target target;
    if (!manifest::parse_target(item->key, &target)) {
      return reader.fail(*targets,
                         json::quote(item->key) + " is no target; expected for instance \"sm_120f\"");
    }
    if (item->type != Type::kString || item->text.empty()) {
      return reader.mismatch(*item, "what the target is for, in words");
    }
    out->targets.push_back(target);
  }
  if (out->targets.empty()) return reader.fail(*targets, "no target; expected at least one");
  if (families->children == 0) return reader.fail(*families, "no family; expected at least one");
  for (const Value* item = families->first; item != nullptr; item = item->next) {
    if (!read_family(reader, *item, &out->families.emplace_back())) return false;
  }
  return true;
}

// A POSIX extended regular expression that is searched for; the empty one is found everywhere.
class Filter {
 public:
  Filter() = default;
  ~Filter() {
    if (compiled_) regfree(&regex_);
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;

  Status compile(const std::string& text) {
    if (text.empty()) return {};
    if (const int error = regcomp(&regex_, text.c_str(), REG_EXTENDED | REG_NOSUB); error != 0) {
      char reason[128];
      regerror(error, &regex_, reason, sizeof(reason));
      return Status::invalid("--filter: \"" + text + "\" is no regular expression: " + reason);
    }
    compiled_ = true;
    return {};
  }
  bool finds(const std::string& text) const {
    return !compiled_ || regexec(&regex_, text.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t regex_ = {};
  bool compiled_ = false;
};

using Point = std::vector<std::pair<const Axis*, const AxisValue*>>;

bool contains(const std::vector<std::string>& values, std::string_view value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool holds(const Condition& condition, const Point& point, const std::string& target) {
  for (const auto& [name, allowed] : condition.allowed) {
    if (name == kTargetAxis) {
      if (!contains(allowed, target)) return false;
      continue;
    }
    for (const auto& [axis, value] : point) {
      if (axis->name == name && !contains(allowed, value->id)) return false;
    }
  }
  return true;
}

std::string spell(const Condition& condition) {
  if (condition.allowed.empty()) return "every configuration";
  std::string text;
  for (const auto& [name, allowed] : condition.allowed) {
    text += (text.empty() ? "" : " and ") + name + " = ";
    for (size_t i = 0; i < allowed.size(); ++i) text += (i == 0 ? "" : " or ") + allowed[i];
  }
  return text;
}

void add_point(const Family& family, const Point& point, const manifest::Target& target, Expansion* out) {
  std::string name = family.name;
  for (const auto& [axis, value] : point) name += "_" + value->id;
  Configuration one;
  one.id = name + "_" + target.name();
  for (const Rule& rule : family.rules) {
    if (holds(rule.when, point, target.name()) && !holds(rule.require, point, target.name())) {
      out->refusals.push_back(
          {one.id, rule.why + " (" + spell(rule.when) + " requires " + spell(rule.require) + ")"});
      return;
    }
  }
  one.symbol = "mla_" + name;
  one.kind = family.kind;
  one.family = family.family;
  one.source = family.source;
  one.target = target;
  one.flags = family.flags;
  one.carveout = family.carveout;
  for (const auto& [axis, value] : point) {
    if (!axis->macro.empty()) one.macros.emplace_back(axis->macro, value->define);
    if (axis->constant != nullptr) one.constants.emplace_back(axis->constant, value->is);
  }
  for (const PriorityRule& rule : family.priorities) {
    if (holds(rule.when, point, target.name())) one.priority = rule.priority;
  }
  for (const LimitRule& rule : family.limits) {
    if (!holds(rule.when, point, target.name())) continue;
    for (const auto& [name, most] : rule.max) one.limits[name] = most;
  }
  out->configurations.push_back(std::move(one));
}

void expand_axes(const Family& family, Point& point, const manifest::Target& target, Expansion* out) {
  if (point.size() == family.axes.size()) {
    add_point(family, point, target, out);
    return;
  }
  const Axis& axis = family.axes[point.size()];
  for (const AxisValue& value : axis.values) {
    point.emplace_back(&axis, &value);
    expand_axes(family, point, target, out);
    point.pop_back();
  }
}

}  // namespace

Status parse_matrix(std::string_view text, std::string_view file, Matrix* out) {
  json::Document document;
  if (Status status = json::Document::parse(text, file, &document); !status.ok()) return status;
  Reader reader(file);
  Matrix matrix;
  if (!read_matrix(reader, document.root(), &matrix)) return reader.status();
  *out = std::move(matrix);
  return {};
}

Status expand(const Matrix& matrix, const Selection& selection, Expansion* out) {
  std::vector<manifest::Target> targets;
  for (const std::string& wanted : selection.targets) {
    const auto at = std::find_if(matrix.targets.begin(), matrix.targets.end(),
                                 [&](const manifest::Target& target) { return target.name() == wanted; });
    if (at == matrix.targets.end()) {
      std::string known;
      for (const manifest::Target& target : matrix.targets)
        known += (known.empty() ? "" : ", ") + target.name();
      return Status::invalid("--arch: no target \"" + wanted + "\" in the matrix; it has " + known);
    }
    targets.push_back(*at);
  }
  if (targets.empty()) targets = matrix.targets;

  Expansion all;
  for (const Family& family : matrix.families) {
    for (const manifest::Target& target : targets) {
      Point point;
      expand_axes(family, point, target, &all);
    }
  }
  std::set<std::string> ids;
  for (const Configuration& one : all.configurations) {
    if (!ids.insert(one.id).second) {
      return Status::invalid("the matrix gives two configurations the id " + one.id +
                             "; expected different ids");
    }
  }
  Filter filter;
  if (Status status = filter.compile(selection.filter); !status.ok()) return status;
  const auto keep = [&](const std::string& id) { return filter.finds(id); };
  Expansion kept;
  for (Configuration& one : all.configurations) {
    if (keep(one.id)) kept.configurations.push_back(std::move(one));
  }
  for (Refusal& one : all.refusals) {
    if (keep(one.id)) kept.refusals.push_back(std::move(one));
  }
  const auto by_id = [](const auto& a, const auto& b) { return a.id < b.id; };
  std::sort(kept.configurations.begin(), kept.configurations.end(), by_id);
  std::sort(kept.refusals.begin(), kept.refusals.end(), by_id);
  *out = std::move(kept);
  return {};
}

}  // namespace mla::generator

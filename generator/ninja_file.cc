// SPDX-License-Identifier: Apache-2.0
#include "generator/ninja_file.h"

#include <sys/stat.h>

#include <cstdio>

#include "generator/process.h"
#include "manifest/files.h"

namespace mla::generator {

namespace {

// A path of a build line.
std::string ninja_path(const std::string& path) {
  std::string escaped;
  for (char c : path) {
    if (c == '$' || c == ' ' || c == ':') escaped += '$';
    escaped += c;
  }
  return escaped;
}

// The value of a variable.
std::string ninja_value(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    if (c == '$') escaped += '$';
    escaped += c;
  }
  return escaped;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quote(word);
  return text;
}

// The output's name as the target of a depfile, made safe for the replacement of sed's s|||.
std::string sed_target(const std::string& path) {
  std::string escaped;
  for (char c : path) {
    if (c == ' ' || c == '#') escaped += "\\\\";
    if (c == '&' || c == '|' || c == '\\') escaped += '\\';
    if (c == '$') escaped += '$';
    escaped += c;
  }
  return escaped;
}

// A step keeps what the compiler said in a log and, once it is done, sizes and times of its files in
// a record. What the compiler said goes to Ninja's output when the log cannot be written (a full disk).
#define MLA_GIVE_UP \
  R"({ printf '%s\n' "$$said" > $q.log || printf '%s\n' "$$said"; rm -f $q.record; : > $q.failed; exit 1; })"
constexpr char kRules[] = R"(
# The source comes through /dev/stdin: nvcc puts a hash of the source's absolute path into the names
# of internal symbols, and this path is the same in every folder. In two steps, so that the PTX that
# is kept is the one that the cubin was made from; a step that gives the same PTX again stops there.
rule ptx
  command = rm -f $q.failed $q.record; said=$$( { printf '#include "%s"\n' $source | MLA_TOOLKIT=$toolkit $nvcc -x cu -ptx -gencode arch=$virtual,code=$virtual $flags -MD -MF $q.d -MT target -o $q.new /dev/stdin && sed -i -e $depfile_edit $q.d && { if cmp -s $q.new $q; then rm $q.new; else mv $q.new $q; fi; }; } 2>&1 ) && printf '%s\n' "$$said" > $q.log && $record $q $q.d $q.log > $q.record || )" MLA_GIVE_UP
                          R"(
  depfile = $out.d
  description = ptx $id
  restat = 1

rule cubin
  command = rm -f $q.failed $q.record; said=$$( MLA_TOOLKIT=$toolkit $nvcc -cubin -gencode arch=$virtual,code=$real $flags -Xptxas -v -o $q $ptx 2>&1 ) && printf '%s\n' "$$said" > $q.log && $record $q $q.log > $q.record || { rm -f $q; )" MLA_GIVE_UP
                          R"(; }
  description = cubin $id
)";
#undef MLA_GIVE_UP

}  // namespace

std::string ptx_path(const NinjaFile& file, const Configuration& one) {
  return file.build_dir + "/ptx/" + one.id + ".ptx";
}

std::string cubin_path(const NinjaFile& file, const Configuration& one) {
  return file.build_dir + "/cubins/" + one.id + ".cubin";
}

std::vector<std::string> compile_flags(const Configuration& one) {
  std::vector<std::string> flags = {"-std=c++20", "-I.", "-DGENERATE_CUBIN", "-Werror", "all-warnings"};
  flags.insert(flags.end(), one.flags.begin(), one.flags.end());
  for (const auto& [name, value] : one.macros) flags.push_back("-D" + name + "=" + value);
  flags.push_back("-DMLA_KERNEL_SYMBOL=" + one.symbol);
  flags.push_back("-DMLA_PRIORITY=" + std::to_string(one.priority));
  flags.push_back("-DMLA_CARVEOUT=" + std::to_string(one.carveout));
  return flags;
}

std::string ninja_text(const NinjaFile& file, const std::vector<Configuration>& configurations) {
  std::string text = std::string(kNinjaFileMark) + "; changes are lost.\nninja_required_version = 1.8\n";
  text += "builddir = " + ninja_value(file.build_dir) + "\n";
  text += "nvcc = " + ninja_value(shell_quote(file.nvcc)) + "\n";
  text += "toolkit = " + file.toolkit + "\n";
  text += "record = stat -c '%s %.9Y'\n";
  text += kRules;
  for (const Configuration& one : configurations) {
    const std::string ptx = ptx_path(file, one);
    const std::string cubin = cubin_path(file, one);
    // The virtual architecture has the suffix of the real one, always: with arch=compute_120 and
    // code=sm_120a, block-scaled instructions become traps.
    const std::string suffix = std::to_string(one.target.sm) + one.target.suffix;
    const auto variable = [&](const std::string& name, const std::string& value) {
      text += "  " + name + " = " + ninja_value(value) + "\n";
    };
    text += "\nbuild " + ninja_path(ptx) + ": ptx " + ninja_path(one.source) + "\n";
    variable("id", one.id);
    variable("source", shell_quote(one.source));
    variable("virtual", "compute_" + suffix);
    variable("flags", join(compile_flags(one)));
    variable("q", shell_quote(ptx));
    // "target : /dev/stdin \" -> "<output> : \"
    variable("depfile_edit", shell_quote("1s|^target *: */dev/stdin|" + sed_target(ptx) + " :|"));
    text += "build " + ninja_path(cubin) + ": cubin " + ninja_path(ptx) + "\n";
    variable("id", one.id);
    variable("virtual", "compute_" + suffix);
    variable("real", "sm_" + suffix);
    variable("flags", join(compile_flags(one)));
    variable("q", shell_quote(cubin));
    variable("ptx", shell_quote(ptx));
  }
  return text;
}

bool is_intact(const std::string& output) {
  std::vector<std::byte> bytes;
  if (!files::read_file(output + ".record", 4096, &bytes).ok()) return false;
  std::string now;
  const bool is_ptx = output.ends_with(".ptx");
  for (const char* suffix : {"", ".d", ".log"}) {
    if (suffix == std::string_view(".d") && !is_ptx) continue;
    struct stat info = {};
    if (stat((output + suffix).c_str(), &info) != 0) return false;
    char line[64];
    snprintf(line, sizeof(line), "%lld %lld.%09ld\n", static_cast<long long>(info.st_size),
             static_cast<long long>(info.st_mtim.tv_sec), info.st_mtim.tv_nsec);
    now += line;
  }
  return now == std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::string> parse_depfile(std::string_view text) {
  // Words are separated by blanks; "\ " is a blank within a word, "\" at the end of a line joins.
  std::vector<std::string> words;
  std::string word;
  bool in_target = true;
  const auto end_word = [&] {
    if (word == ":") {
      in_target = false;
    } else if (!word.empty() && in_target) {
      if (word.back() == ':') in_target = false;
    } else if (!word.empty()) {
      words.push_back(word);
    }
    word.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\n';
    if (c == '\\' && next == '\n') {
      end_word();
      ++i;
    } else if (c == '\\' && (next == ' ' || next == '#' || next == '\\')) {
      word += next;
      ++i;
    } else if (c == '$' && next == '$') {
      word += c;
      ++i;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      end_word();
    } else {
      word += c;
    }
  }
  end_word();
  return words;
}

}  // namespace mla::generator

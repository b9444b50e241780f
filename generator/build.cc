// SPDX-License-Identifier: Apache-2.0
#include "generator/build.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "generator/bundle.h"
#include "generator/describe.h"
#include "generator/ninja_file.h"
#include "generator/process.h"
#include "generator/toolkit.h"
#include "manifest/cubin.h"
#include "manifest/files.h"
#include "manifest/sha256.h"

namespace mla::generator {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxText = uint64_t{256} << 20;

BuildResult refuse(const std::string& message) {
  fprintf(stderr, "mla-gen: error: %s\n", Status::invalid(message).message().c_str());
  return BuildResult::kRefused;
}

Status read_text(const std::string& path, std::string* out) {
  std::vector<std::byte> bytes;
  if (Status status = files::read_file(path, kMaxText, &bytes); !status.ok()) return status;
  out->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return {};
}

// One build at a time in a build folder: Ninja itself does not lock it.
class Lock {
 public:
  ~Lock() {
    if (fd_ >= 0) close(fd_);
  }
  Status take(const std::string& path) {
    // Ninja and the compilers inherit it: until the last of them has ended, nobody else builds here.
    fd_ = open(path.c_str(), O_RDWR | O_CREAT, 0644);
    if (fd_ < 0) return Status::io(path + ": cannot be created: " + strerror(errno));
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return {};
    printf("mla-gen: waiting for another build in the same folder\n");
    fflush(stdout);
    while (flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) return Status::io(path + ": cannot be locked: " + strerror(errno));
    }
    return {};
  }

 private:
  int fd_ = -1;
};

// The digest of everything that decided what was compiled: the files within the source folder that
// the compilations read (path and content, by path) and the flags of every configuration.
Status hash_sources(const NinjaFile& file, const fs::path& source,
                    const std::vector<Configuration>& configurations, std::string* out) {
  std::set<std::string> paths;
  for (const Configuration& one : configurations) {
    std::string text;
    if (Status status = read_text(ptx_path(file, one) + ".d", &text); !status.ok()) return status;
    for (const std::string& word : parse_depfile(text)) {
      // The compiler gives paths below "." for ours and absolute ones for the toolkit's and system's.
      const std::string path = fs::path(word).lexically_normal().generic_string();
      if (path.empty() || path.front() == '/' || path.starts_with("..")) continue;
      paths.insert(path);
    }
  }
  Sha256 hash;
  std::vector<std::byte> bytes;
  for (const std::string& path : paths) {
    if (Status status = files::read_file((source / path).string(), kMaxText, &bytes); !status.ok())
      return status;
    hash.update(path + "\n" + sha256_hex(bytes) + "\n");
  }
  for (const Configuration& one : configurations) {
    hash.update(one.id + "\n");
    for (const std::string& flag : compile_flags(one)) hash.update(flag + "\n");
  }
  *out = hash.hex();
  return {};
}

// The lines of a compiler's output, indented, and cut where it quotes what macros became.
std::string indent(const std::string& text) {
  constexpr size_t kLongest = 400;
  std::string indented;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, std::min(end - begin, kLongest));
    if (end - begin > kLongest) line += " ...";
    indented += "  " + line + "\n";
    begin = end + 1;
  }
  return indented;
}

std::string free_space(const std::string& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? folder + ": " + error.message()
               : std::to_string(space.available) + " bytes are free in " + folder;
}

// Names every configuration that failed, with what the compiler said. Returns how many.
size_t report_failures(const NinjaFile& file, const std::vector<Configuration>& configurations) {
  size_t failures = 0;
  for (const Configuration& one : configurations) {
    for (const std::string& path : {ptx_path(file, one), cubin_path(file, one)}) {
      if (!fs::exists(path + ".failed")) continue;
      std::string log;
      if (!read_text(path + ".log", &log).ok() || log.find_first_not_of(" \n") == std::string::npos) {
        log = "no message of the compiler was kept; " + free_space(file.build_dir);
      }
      fprintf(stderr, "mla-gen: error: %s: compilation failed:\n%s", one.id.c_str(), indent(log).c_str());
      ++failures;
    }
  }
  return failures;
}

// Why nothing can be built with these folders, "" if it can: found out before anything is compiled or
// written.
std::string folder_error(const BuildOptions& options, const std::string& build_dir) {
  if (Status status = check_out(options.out); !status.ok()) return "--out " + status.message();
  const std::string from =
      options.build_dir.empty() ? "--out: the folder of intermediate files " : "--build-dir ";
  for (const char c : build_dir) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f ||
        std::string_view("\\'\"$`|").find(c) != std::string_view::npos) {
      return from + build_dir + ": has a character that nvcc or Ninja cannot handle in a path";
    }
  }
  std::error_code error;
  const auto canonical = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path), error) / "";
  };
  const auto lies_in = [&](const std::string& path, const std::string& folder) {
    return canonical(path).string().starts_with(canonical(folder).string());
  };
  if (lies_in(build_dir, options.out)) return from + build_dir + ": lies in --out, which is replaced";
  if (!options.ptx_out.empty()) {
    if (lies_in(options.ptx_out, options.out))
      return "--ptx-out " + options.ptx_out + ": lies in --out, which is replaced";
    if (fs::exists(options.ptx_out, error) && !fs::is_directory(options.ptx_out, error)) {
      return "--ptx-out " + options.ptx_out + ": is no folder; expected a folder or nothing";
    }
  }
  std::string ninja_file;
  if (fs::exists(build_dir + "/build.ninja", error) &&
      (!read_text(build_dir + "/build.ninja", &ninja_file).ok() || !ninja_file.starts_with(kNinjaFileMark))) {
    return from + build_dir + ": has a build.ninja that mla-gen did not write; expected a folder of its own";
  }
  return "";
}

// Reads a compiled cubin back and compares it with what was asked for.
Status check_cubin(const NinjaFile& file, const Configuration& one, manifest::Kernel* kernel,
                   std::vector<std::byte>* image, std::vector<std::string>* problems) {
  const std::string path = cubin_path(file, one);
  if (Status status = files::read_file(path, kMaxText, image); !status.ok()) return status;
  std::string log;
  if (Status status = read_text(path + ".log", &log); !status.ok()) return status;
  std::string toolkit;
  if (Status status = describe(*image, path, kernel, &toolkit); !status.ok()) return status;
  PtxasReport report;
  if (Status status = read_ptxas_log(log, path + ".log", one.symbol, &report); !status.ok()) return status;
  *problems = compare(one, *kernel, report);
  if (toolkit != file.toolkit) {
    problems->push_back("toolkit: the cubin says " + toolkit + "; nvcc is " + file.toolkit);
  }
  kernel->resources.spill_bytes = report.spill_bytes;
  return {};
}

// The digest of a checked cubin's instructions.
Status hash_code(std::span<const std::byte> image, const std::string& path, std::string* out) {
  cubin::Info info;
  if (Status status = cubin::read(image, path, &info); !status.ok()) return status;
  *out = sha256_hex(image.subspan(info.kernels.front().code_offset, info.kernels.front().code_bytes));
  return {};
}

}  // namespace

Status read_matrix_file(const std::string& path, Matrix* out) {
  std::string text;
  if (Status status = read_text(path, &text); !status.ok()) return status;
  return parse_matrix(text, path, out);
}

BuildResult build(const BuildOptions& options) {
  NinjaFile file;
  std::string out = options.out;
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  file.build_dir = fs::absolute(options.build_dir.empty() ? out + ".build" : options.build_dir)
                       .lexically_normal()
                       .string();
  if (std::string why = folder_error(options, file.build_dir); !why.empty()) return refuse(why);

  Matrix matrix;
  Expansion expansion;
  if (Status status = read_matrix_file(options.matrix, &matrix); !status.ok())
    return refuse(status.message());
  if (Status status = expand(matrix, options.selection, &expansion); !status.ok())
    return refuse(status.message());
  const std::vector<Configuration>& configurations = expansion.configurations;
  for (const Refusal& one : expansion.refusals)
    printf("refused %s: %s\n", one.id.c_str(), one.reason.c_str());
  if (configurations.empty()) return refuse("no configuration is left to build; see mla-gen list");

  std::error_code error;
  const fs::path source = fs::canonical(options.source_dir, error);
  if (error) return refuse("--source " + options.source_dir + ": " + error.message());
  std::set<std::string> sources;
  for (const Configuration& one : configurations) sources.insert(one.source);
  for (const std::string& path : sources) {
    if (!fs::is_regular_file(source / path, error)) {
      return refuse((source / path).string() +
                    ": there is no such file; the matrix names it as a source "
                    "relative to --source");
    }
  }

  // A relative path with a slash would mean another file: the compiler runs in the source folder.
  file.nvcc =
      options.nvcc.find('/') == std::string::npos ? options.nvcc : fs::absolute(options.nvcc).string();
  if (Status status = read_nvcc_version(file.nvcc, &file.toolkit); !status.ok())
    return refuse(status.message());

  for (const char* folder : {"/ptx", "/cubins"}) {
    fs::create_directories(file.build_dir + folder, error);
    if (error) return refuse(file.build_dir + folder + ": cannot be created: " + error.message());
  }
  Lock lock;
  if (Status status = lock.take(file.build_dir + "/.lock"); !status.ok()) return refuse(status.message());
  for (const Configuration& one : configurations) {
    for (const std::string& path : {ptx_path(file, one), cubin_path(file, one)}) {
      // Marks of an earlier run say nothing about this one.
      fs::remove(path + ".failed", error);
      // Ninja looks at times alone: what was damaged since it was made must go to be made again.
      if (!is_intact(path)) fs::remove(path, error);
    }
  }
  const std::string ninja_file = file.build_dir + "/build.ninja";
  if (Status status = write_file(ninja_file, ninja_text(file, configurations)); !status.ok()) {
    return refuse(status.message());
  }

  printf("mla-gen: %zu kernels with nvcc %s, in %s\n", configurations.size(), file.toolkit.c_str(),
         file.build_dir.c_str());
  fflush(stdout);
  // -k 0: one run shows every configuration that does not compile.
  std::vector<std::string> command = {options.ninja, "-k", "0", "-f", ninja_file};
  if (options.jobs > 0) command.insert(command.end(), {"-j", std::to_string(options.jobs)});
  int code = 0;
  if (Status status = run_process(command, source.string(), nullptr, &code); !status.ok()) {
    return refuse(status.message() + "; install ninja-build or give --ninja");
  }
  if (code != 0) {
    const size_t failures = report_failures(file, configurations);
    if (failures == 0) {
      fprintf(stderr, "mla-gen: error: ninja ended with %d; %s; %s is as it was before\n", code,
              free_space(file.build_dir).c_str(), options.out.c_str());
      return BuildResult::kFailed;
    }
    fprintf(stderr,
            "mla-gen: error: %zu of %zu configurations did not compile (ninja ended with %d); %s is as it "
            "was before\n",
            failures, configurations.size(), code, options.out.c_str());
    return BuildResult::kFailed;
  }

  manifest::Manifest manifest;
  manifest.name = options.name.empty() ? matrix.name : options.name;
  manifest.version = options.version.empty() ? matrix.version : options.version;
  manifest.toolkit = file.toolkit;
  std::vector<std::vector<std::byte>> images(configurations.size());
  // Two configurations of one target with the same instructions: a macro that the source ignores.
  std::map<std::string, std::string> seen;  // target and digest -> id
  size_t wrong = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < configurations.size(); ++i) {
    const Configuration& one = configurations[i];
    std::vector<std::string> problems;
    manifest::Kernel& kernel = manifest.kernels.emplace_back();
    if (Status status = check_cubin(file, one, &kernel, &images[i], &problems); !status.ok()) {
      problems.push_back(status.message());
    } else {
      std::string digest;
      status = hash_code(images[i], cubin_path(file, one), &digest);
      if (!status.ok()) problems.push_back(status.message());
      const auto [at, fresh] = seen.emplace(one.target.name() + digest, one.id);
      if (!fresh)
        problems.push_back("the same machine code as " + at->second +
                           ": an axis of the matrix has no effect");
    }
    for (const std::string& problem : problems) {
      fprintf(stderr, "mla-gen: error: %s: %s\n", one.id.c_str(), problem.c_str());
    }
    wrong += problems.empty() ? 0 : 1;
    bytes += images[i].size();
  }
  if (wrong != 0) {
    fprintf(stderr, "mla-gen: error: %zu of %zu cubins are not what was asked for; %s is as it was before\n",
            wrong, configurations.size(), options.out.c_str());
    return BuildResult::kFailed;
  }
  if (Status status = hash_sources(file, source, configurations, &manifest.source_hash); !status.ok()) {
    return refuse(status.message());
  }

  if (!options.ptx_out.empty()) {
    fs::create_directories(options.ptx_out, error);
    if (error) return refuse("--ptx-out " + options.ptx_out + ": cannot be created: " + error.message());
    for (size_t i = 0; i < configurations.size(); ++i) {
      std::string text, old;
      const std::string path = options.ptx_out + "/" + manifest.kernels[i].sha256 + ".ptx";
      if (Status status = read_text(ptx_path(file, configurations[i]), &text); !status.ok()) {
        return refuse(status.message());
      }
      if (read_text(path, &old).ok() && old == text) continue;
      if (Status status = write_file(path, text); !status.ok()) return refuse(status.message());
    }
  }
  bool changed = false;
  if (Status status = write_bundle(options.out, manifest, images, &changed); !status.ok()) {
    return refuse(status.message());
  }
  printf("mla-gen: %s: %zu kernels, %llu bytes of machine code, source hash %.16s...%s\n",
         options.out.c_str(), manifest.kernels.size(), static_cast<unsigned long long>(bytes),
         manifest.source_hash.c_str(), changed ? "" : ", unchanged");
  return BuildResult::kDone;
}

}  // namespace mla::generator

// SPDX-License-Identifier: Apache-2.0
#include "generator/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "generator/describe.h"
#include "manifest/cubin.h"
#include "manifest/files.h"
#include "manifest/json.h"
#include "manifest/sha256.h"

namespace mla::generator {

namespace fs = std::filesystem;

namespace {

using manifest::kMaxCubinBytes;
using manifest::kMaxManifestBytes;
const std::string kManifestName(manifest::kManifestFile);

std::string reason(int error) {
  return std::string(strerror(error)) + " (errno " + std::to_string(error) + ")";
}

std::string_view as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Writes to `fd` and closes it; on disk before a rename makes it visible.
Status write_all(int fd, const std::string& path, std::span<const std::byte> bytes) {
  size_t done = 0;
  Status status;
  while (done < bytes.size() && status.ok()) {
    const ssize_t put = write(fd, bytes.data() + done, bytes.size() - done);
    if (put >= 0) {
      done += static_cast<size_t>(put);
    } else if (errno != EINTR) {
      status = Status::io(path + ": cannot be written: " + reason(errno));
    }
  }
  if (status.ok() && fsync(fd) != 0) status = Status::io(path + ": cannot be written: " + reason(errno));
  if (close(fd) != 0 && status.ok()) status = Status::io(path + ": cannot be written: " + reason(errno));
  return status;
}

Status write_plain(const std::string& path, std::span<const std::byte> bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Status::io(path + ": cannot be created: " + reason(errno));
  return write_all(fd, path, bytes);
}

// Between the name of a bundle and six random characters, in the name of a folder beside it.
constexpr char kTemporary[] = ".mla-gen-";

// A folder that is removed with everything in it unless it was moved away.
class TemporaryFolder {
 public:
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Status create(const fs::path& beside) {
    std::string pattern =
        (beside.parent_path() / ("." + beside.filename().string() + kTemporary + "XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr)
      return Status::io(pattern + ": cannot be created: " + reason(errno));
    path_ = pattern;
    const mode_t mask = umask(0);
    umask(mask);
    chmod(pattern.c_str(), 0777 & ~mask);
    return {};
  }
  const std::string& path() const { return path_; }
  void moved_away() { path_.clear(); }

 private:
  std::string path_;
};

// Held while a bundle is put into a folder, so that temporary folders found there belong to nobody.
class FolderLock {
 public:
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  // False where the file system has no such lock, or somebody keeps it.
  bool take(const fs::path& folder) {
    fd_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) return false;
    constexpr int kTries = 200;
    for (int i = 0; i < kTries; ++i) {
      if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
      if (errno != EWOULDBLOCK && errno != EINTR) return false;
      usleep(50000);
    }
    return false;
  }

 private:
  int fd_ = -1;
};

// Paths of the files of the bundle in `dir`, whatever its format version; fails if it is none.
Status bundle_files(const fs::path& dir, std::set<std::string>* out) {
  std::error_code error;
  const fs::path path = dir / kManifestName;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) {
    return Status::invalid("has files and no " + kManifestName);
  }
  std::vector<std::byte> bytes;
  if (Status status = files::read_file(path.string(), kMaxManifestBytes, &bytes); !status.ok()) return status;
  json::Document document;
  if (Status status = json::Document::parse(as_text(bytes), kManifestName, &document); !status.ok())
    return status;
  json::Reader reader(kManifestName);
  const json::Value *format = nullptr, *kernels = nullptr;
  std::string text;
  if (!reader.object(document.root(), "format", &format) ||
      !reader.text(
          *format, "name", [](std::string_view name) { return name == manifest::kFormatName; },
          "\"" + std::string(manifest::kFormatName) + "\"", &text) ||
      !reader.array(document.root(), "kernels", &kernels)) {
    return reader.status();
  }
  out->insert(kManifestName);
  for (const json::Value* kernel = kernels->first; kernel != nullptr; kernel = kernel->next) {
    const json::Value* file = kernel->find("file");
    if (file != nullptr && file->type == json::Type::kString) out->emplace(file->text);
  }
  return {};
}

// What is in the folder `dir` and in no bundle, "" if there is nothing.
std::string stranger(const fs::path& dir, const std::set<std::string>& known) {
  std::set<std::string> folders;
  for (const std::string& file : known) {
    for (size_t slash = file.find('/'); slash != std::string::npos; slash = file.find('/', slash + 1)) {
      folders.insert(file.substr(0, slash));
    }
  }
  std::error_code error;
  fs::recursive_directory_iterator at(dir, error), end;
  for (; !error && at != end; at.increment(error)) {
    const std::string name = at->path().lexically_relative(dir).generic_string();
    const bool folder = fs::is_directory(at->symlink_status(error));
    if (!(folder ? folders : known).contains(name)) return name;
  }
  return "";
}

// Removes what killed processes left beside `dir`: folders that we named and that hold nothing but
// what a bundle holds.
void remove_left_behind(const fs::path& dir) {
  const std::string prefix = "." + dir.filename().string() + kTemporary;
  std::error_code error;
  std::vector<fs::path> left;
  for (fs::directory_iterator at(dir.parent_path(), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.size() == prefix.size() + 6 && name.starts_with(prefix) &&
        fs::is_directory(at->symlink_status(error))) {
      left.push_back(at->path());
    }
  }
  for (const fs::path& folder : left) {
    std::set<std::string> known = {kManifestName, "cubins/any"};
    for (fs::directory_iterator at(folder / "cubins", error), end; !error && at != end; at.increment(error)) {
      const std::string name = "cubins/" + at->path().filename().string();
      if (name.ends_with(".cubin")) known.insert(name);
    }
    error.clear();
    if (stranger(folder, known).empty()) fs::remove_all(folder, error);
  }
}

bool is_mount_point(const fs::path& dir) {
  struct statx info = {};
  if (statx(AT_FDCWD, dir.c_str(), 0, STATX_BASIC_STATS, &info) != 0) return false;
  if ((info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
  struct stat own = {}, above = {};  // before Linux 5.8
  return stat(dir.c_str(), &own) == 0 && stat(dir.parent_path().c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

// The folder that a bundle written to `given` would replace or become.
Status resolve_out(const std::string& given, fs::path* out) {
  const auto refuse = [&](const std::string& why) { return Status::invalid(given + ": " + why); };
  if (given.empty()) return Status::invalid("\"\" is empty; expected the path of a folder or of nothing");
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(given, error)) && !fs::exists(given, error)) {
    return refuse("is a link that leads nowhere; expected a folder or nothing");
  }
  // A link to a bundle stays a link: what it points to is replaced.
  fs::path dir = fs::weakly_canonical(fs::absolute(given), error);
  if (error) return Status::io(given + ": " + error.message());
  if (!dir.has_filename()) dir = dir.parent_path();
  if (!dir.has_relative_path()) return refuse("is the root folder; expected a folder that may be replaced");
  for (fs::path current = fs::current_path(error); !error; current = current.parent_path()) {
    if (current == dir) {
      return refuse("is or holds the current folder; expected a folder that may be replaced");
    }
    if (!current.has_relative_path()) break;
  }
  *out = dir;
  if (!fs::exists(fs::symlink_status(dir, error))) {
    fs::path above = dir.parent_path();
    while (above.has_relative_path() && !fs::exists(fs::symlink_status(above, error)))
      above = above.parent_path();
    if (!fs::is_directory(above, error)) return refuse(above.string() + " is no folder");
    if (access(above.c_str(), W_OK | X_OK) != 0) {
      return Status::io(given + ": nothing can be created in " + above.string() + ": " + reason(errno));
    }
    return {};
  }
  if (!fs::is_directory(dir, error)) return refuse("is no folder; expected a folder or nothing");
  if (is_mount_point(dir)) return refuse("is a mount point; expected a folder that may be replaced");
  if (access(dir.parent_path().c_str(), W_OK | X_OK) != 0) {
    return Status::io(given + ": cannot be replaced in " + dir.parent_path().string() + ": " + reason(errno));
  }
  if (fs::is_empty(dir, error)) return {};
  std::set<std::string> known;
  if (Status status = bundle_files(dir, &known); !status.ok()) {
    return refuse(status.message() + "; only a bundle is replaced");
  }
  if (const std::string name = stranger(dir, known); !name.empty()) {
    return refuse("has " + json::quote(name) + ", which belongs to no bundle; only a bundle is replaced");
  }
  return {};
}

// Puts `fresh` in the place of `dir`; `fresh` then is the old bundle or gone.
Status put_in_place(TemporaryFolder& fresh, const fs::path& dir) {
  if (!fs::exists(dir) || fs::is_empty(dir)) {
    if (rename(fresh.path().c_str(), dir.c_str()) != 0) {
      return Status::io(dir.string() + ": cannot be put in place: " + reason(errno));
    }
    fresh.moved_away();
    return {};
  }
  if (renameat2(AT_FDCWD, fresh.path().c_str(), AT_FDCWD, dir.c_str(), RENAME_EXCHANGE) == 0) return {};
  if (errno != EINVAL && errno != ENOSYS) {
    return Status::io(dir.string() + ": cannot be replaced: " + reason(errno));
  }
  // A file system that cannot exchange: for a moment there is no bundle, never a partial one.
  TemporaryFolder old;
  if (Status status = old.create(dir); !status.ok()) return status;
  if (rename(dir.c_str(), old.path().c_str()) != 0) {
    return Status::io(dir.string() + ": cannot be replaced: " + reason(errno));
  }
  if (rename(fresh.path().c_str(), dir.c_str()) != 0) {
    const int error = errno;
    if (rename(old.path().c_str(), dir.c_str()) == 0) old.moved_away();
    return Status::io(dir.string() + ": cannot be replaced: " + reason(error));
  }
  fresh.moved_away();
  return {};
}

bool same_content(const std::string& dir, const std::string& text,
                  const std::vector<std::vector<std::byte>>& images, const manifest::Manifest& manifest) {
  std::vector<std::byte> bytes;
  if (!files::read_file(dir + "/" + kManifestName, kMaxManifestBytes, &bytes).ok() || as_text(bytes) != text)
    return false;
  for (size_t i = 0; i < images.size(); ++i) {
    if (!files::read_file(dir + "/" + manifest.kernels[i].file, kMaxCubinBytes, &bytes).ok() ||
        bytes != images[i]) {
      return false;
    }
  }
  std::error_code error;
  size_t count = 0;
  for (fs::directory_iterator at(dir + "/cubins", error), end; at != end && !error; at.increment(error))
    ++count;
  return count == images.size();
}

// Relative paths of everything but folders below `dir`, sorted.
Status list_files(const std::string& dir, std::vector<std::string>* out) {
  std::error_code error;
  fs::recursive_directory_iterator at(dir, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (at->is_directory(error) && !at->is_symlink(error)) continue;
    out->push_back(at->path().lexically_relative(dir).generic_string());
  }
  if (error) return Status::io(dir + ": cannot be listed: " + error.message());
  std::sort(out->begin(), out->end());
  return {};
}

// The members of a JSON object with everything below it, by JSON pointer.
std::map<std::string, std::string> leaves(const nlohmann::json& object) {
  std::map<std::string, std::string> flat;
  const nlohmann::json flattened = object.flatten();
  for (const auto& [pointer, value] : flattened.items()) flat[pointer] = value.dump();
  return flat;
}

void diff_leaves(const std::string& where, const nlohmann::json& a, const nlohmann::json& b,
                 std::vector<std::string>* out) {
  const std::map<std::string, std::string> left = leaves(a), right = leaves(b);
  for (const auto& [pointer, value] : left) {
    const auto other = right.find(pointer);
    if (other == right.end()) {
      out->push_back(where + pointer + ": " + value + " -> (nothing)");
    } else if (other->second != value) {
      out->push_back(where + pointer + ": " + value + " -> " + other->second);
    }
  }
  for (const auto& [pointer, value] : right) {
    if (left.count(pointer) == 0) out->push_back(where + pointer + ": (nothing) -> " + value);
  }
}

}  // namespace

Status check_out(const std::string& dir) {
  fs::path ignored;
  return resolve_out(dir, &ignored);
}

Status write_file(const std::string& path, std::string_view text) {
  std::error_code error;
  fs::path target = path;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    target = fs::canonical(path, error);
    if (error) return Status::invalid(path + ": is a link that leads nowhere; expected a file or nothing");
  }
  const fs::file_status there = fs::status(target, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    return Status::invalid(path + ": is a " +
                           (fs::is_directory(there) ? "folder" : "pipe, socket or device") +
                           "; expected a regular file or nothing");
  }
  std::string fresh =
      (target.parent_path() / ("." + target.filename().string() + kTemporary + "XXXXXX")).string();
  const int fd = mkostemp(fresh.data(), O_CLOEXEC);
  if (fd < 0) return Status::io(path + ": cannot be created: " + reason(errno));
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(fd, fs::exists(there) ? static_cast<mode_t>(there.permissions()) & 07777 : 0666 & ~mask);
  Status status = write_all(fd, path, std::as_bytes(std::span(text.data(), text.size())));
  if (status.ok() && rename(fresh.c_str(), target.c_str()) != 0) {
    status = Status::io(path + ": cannot be replaced: " + reason(errno));
  }
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

Status read_bundle(const std::string& dir, manifest::Manifest* out, std::string* text) {
  files::Folder folder;
  if (Status status = files::Folder::open(dir, &folder); !status.ok()) return status;
  std::vector<std::byte> bytes;
  if (Status status = folder.read(kManifestName, kMaxManifestBytes, &bytes); !status.ok()) return status;
  if (text != nullptr) *text = as_text(bytes);
  return manifest::parse(as_text(bytes), folder.path_of(kManifestName), out);
}

Status write_bundle(const std::string& dir_in, const manifest::Manifest& manifest,
                    const std::vector<std::vector<std::byte>>& images, bool* changed) {
  *changed = false;
  std::error_code error;
  fs::path dir;
  if (Status status = resolve_out(dir_in, &dir); !status.ok()) return status;

  const std::string text = manifest::write(manifest);
  // What is written must be readable by the strict reader.
  manifest::Manifest again;
  if (Status status = manifest::parse(text, kManifestName, &again); !status.ok()) return status;
  for (const manifest::Kernel& kernel : again.kernels) {
    if (!kernel.unknown.empty()) return Status::invalid(kernel.id + ": " + kernel.unknown);
  }
  fs::create_directories(dir.parent_path(), error);
  if (error) return Status::io(dir.parent_path().string() + ": cannot be created: " + error.message());
  FolderLock lock;
  if (lock.take(dir.parent_path())) remove_left_behind(dir);
  if (same_content(dir.string(), text, images, manifest)) return {};

  TemporaryFolder fresh;
  if (Status status = fresh.create(dir); !status.ok()) return status;
  fs::create_directory(fresh.path() + "/cubins", error);
  if (error) return Status::io(fresh.path() + "/cubins: cannot be created: " + error.message());
  for (size_t i = 0; i < images.size(); ++i) {
    const Status status = write_plain(fresh.path() + "/" + manifest.kernels[i].file, images[i]);
    if (!status.ok()) return status;
  }
  const Status status =
      write_plain(fresh.path() + "/" + kManifestName, std::as_bytes(std::span(text.data(), text.size())));
  if (!status.ok()) return status;
  if (Status placed = put_in_place(fresh, dir); !placed.ok()) return placed;
  *changed = true;
  return {};
}

std::vector<std::string> verify_bundle(const std::string& dir) {
  manifest::Manifest manifest;
  if (Status status = read_bundle(dir, &manifest); !status.ok()) return {status.message()};
  files::Folder folder;
  if (Status status = files::Folder::open(dir, &folder); !status.ok()) return {status.message()};

  std::vector<std::string> problems;
  std::set<std::string> known = {kManifestName};
  std::vector<std::byte> bytes;
  for (const manifest::Kernel& kernel : manifest.kernels) {
    known.insert(kernel.file);
    const std::string path = folder.path_of(kernel.file);
    if (!kernel.unknown.empty()) {
      problems.push_back(folder.path_of(kManifestName) + ": " + kernel.id + ": " + kernel.unknown);
      continue;
    }
    if (Status status = folder.read(kernel.file, kMaxCubinBytes, &bytes); !status.ok()) {
      problems.push_back(status.message());
      continue;
    }
    if (bytes.size() != kernel.size) {
      problems.push_back(path + ": has " + std::to_string(bytes.size()) + " bytes; the manifest says " +
                         std::to_string(kernel.size));
      continue;
    }
    if (const std::string hash = sha256_hex(bytes); hash != kernel.sha256) {
      problems.push_back(path + ": has the sha256 " + hash + "; the manifest says " + kernel.sha256);
      continue;
    }
    manifest::Kernel said;
    std::string toolkit;
    if (Status status = describe(bytes, path, &said, &toolkit); !status.ok()) {
      problems.push_back(status.message());
      continue;
    }
    if (toolkit != manifest.toolkit) {
      problems.push_back(path + ": built with toolkit " + toolkit + "; the manifest says " +
                         manifest.toolkit);
    }
    // A cubin with a stack does not tell its spills.
    if (said.resources.spill_bytes == manifest::kSpillUnknown)
      said.resources.spill_bytes = kernel.resources.spill_bytes;
    std::vector<std::string> lines;
    diff_leaves("", nlohmann::json::parse(manifest::write(said)),
                nlohmann::json::parse(manifest::write(kernel)), &lines);
    for (const std::string& line : lines) {
      problems.push_back(path + ": the cubin and the manifest differ: " + line);
    }
  }
  std::vector<std::string> there;
  if (Status status = list_files(dir, &there); !status.ok()) problems.push_back(status.message());
  for (const std::string& file : there) {
    if (known.count(file) == 0) problems.push_back(folder.path_of(file) + ": is not in the manifest");
  }
  return problems;
}

Status index_bundle(const std::string& dir, const IndexOptions& options, manifest::Manifest* out) {
  manifest::Manifest old;
  if (!options.fresh) {
    // One that is broken is no help, and rebuilding it may be why we are here.
    manifest::Manifest found;
    if (read_bundle(dir, &found).ok()) old = std::move(found);
  }
  manifest::Manifest manifest;
  manifest.name = !options.name.empty() ? options.name : old.name;
  manifest.version = !options.version.empty() ? options.version : old.version;
  manifest.source_hash = !options.source_hash.empty() ? options.source_hash : old.source_hash;
  if (manifest.name.empty() || manifest.version.empty()) {
    return Status::invalid(
        dir + ": there is no readable manifest to take name and version from; give --name and --version");
  }
  if (manifest.source_hash.empty()) manifest.source_hash = std::string(64, '0');

  files::Folder folder;
  if (Status status = files::Folder::open(dir, &folder); !status.ok()) return status;
  std::vector<std::string> there;
  if (Status status = list_files(dir, &there); !status.ok()) return status;
  std::vector<std::byte> bytes;
  for (const std::string& file : there) {
    if (!file.ends_with(".cubin")) continue;
    if (Status status = folder.read(file, kMaxCubinBytes, &bytes); !status.ok()) return status;
    manifest::Kernel& kernel = manifest.kernels.emplace_back();
    std::string toolkit;
    const std::string path = folder.path_of(file);
    if (Status status = describe(bytes, path, &kernel, &toolkit); !status.ok()) return status;
    if (manifest.kernels.size() == 1) {
      manifest.toolkit = toolkit;
    } else if (toolkit != manifest.toolkit) {
      return Status::invalid(path + ": built with toolkit " + toolkit + ", the cubins before it with " +
                             manifest.toolkit + "; a bundle has one toolkit");
    }
    if (kernel.file != file) {
      return Status::invalid(path + ": its kernel " + kernel.symbol + " for " + kernel.target.name() +
                             " belongs into " + kernel.file);
    }
    if (kernel.resources.spill_bytes == manifest::kSpillUnknown) {
      for (const manifest::Kernel& before : old.kernels) {
        if (before.sha256 == kernel.sha256) kernel.resources.spill_bytes = before.resources.spill_bytes;
      }
    }
  }
  if (manifest.kernels.empty()) return Status::invalid(dir + ": has no file ending in .cubin");
  std::sort(manifest.kernels.begin(), manifest.kernels.end(),
            [](const manifest::Kernel& a, const manifest::Kernel& b) { return a.id < b.id; });
  manifest::Manifest again;
  if (Status status = manifest::parse(manifest::write(manifest), kManifestName, &again); !status.ok())
    return status;
  *out = std::move(manifest);
  return {};
}

std::vector<std::string> diff_manifests(std::string_view a, std::string_view b) {
  nlohmann::json left = nlohmann::json::parse(a);
  nlohmann::json right = nlohmann::json::parse(b);
  std::map<std::string, nlohmann::json> kernels[2];
  for (nlohmann::json& kernel : left["kernels"]) kernels[0][kernel["id"]] = kernel;
  for (nlohmann::json& kernel : right["kernels"]) kernels[1][kernel["id"]] = kernel;
  left.erase("kernels");
  right.erase("kernels");
  std::vector<std::string> lines;
  diff_leaves("", left, right, &lines);
  for (const auto& [id, kernel] : kernels[0]) {
    const auto other = kernels[1].find(id);
    if (other == kernels[1].end()) {
      lines.push_back(id + ": only in the first");
    } else {
      diff_leaves(id + ": ", kernel, other->second, &lines);
    }
  }
  for (const auto& [id, kernel] : kernels[1]) {
    if (kernels[0].count(id) == 0) lines.push_back(id + ": only in the second");
  }
  return lines;
}

}  // namespace mla::generator

// SPDX-License-Identifier: Apache-2.0
//
// Reading whole files. Every message names the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/status.h"

namespace mla::files {

// Reads the regular file `path`. Refuses more than `max_bytes`, folders, pipes and devices.
// *out is reused (its capacity is kept) and unspecified on failure.
Status read_file(const std::string& path, uint64_t max_bytes, std::vector<std::byte>* out);

// An open folder whose files are reached by relative paths that cannot leave it, neither by ".."
// nor by a link. Links within the folder are followed; on kernels without openat2 (before Linux
// 5.6) no link is. Reading is thread-safe. Move-only.
class Folder {
 public:
  Folder() = default;
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  static Status open(const std::string& path, Folder* out);

  // As read_file, for the file `relative` of the folder.
  Status read(std::string_view relative, uint64_t max_bytes, std::vector<std::byte>* out) const;
  // Size in bytes of the regular file `relative`, without reading it.
  Status size(std::string_view relative, uint64_t* bytes) const;

  const std::string& path() const { return path_; }
  // The path that messages use for a file of the folder.
  std::string path_of(std::string_view relative) const;

 private:
  Status open_file(std::string_view relative, int* fd, uint64_t* bytes) const;

  std::string path_;
  int fd_ = -1;
};

// Why `path` cannot be the path of a file within a folder ("" when it can): absolute, "..", ".",
// empty parts, backslashes, control characters. `folder` is how the answer calls the folder.
std::string relative_path_error(std::string_view path, std::string_view folder = "the bundle");

}  // namespace mla::files

// SPDX-License-Identifier: Apache-2.0
#include "manifest/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace mla::files {

namespace {

// Non-blocking, so that a pipe under a file's name is refused and not waited for.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

std::string reason(int error) {
  char buffer[256];
  // The GNU form: returns a pointer, thread-safe.
  return std::string(strerror_r(error, buffer, sizeof(buffer))) + " (errno " + std::to_string(error) + ")";
}

Status check_regular(int fd, const std::string& path, uint64_t* bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Status::io(path + ": cannot be examined: " + reason(errno));
  if (S_ISDIR(info.st_mode)) return Status::io(path + ": is a folder; expected a file");
  if (!S_ISREG(info.st_mode)) {
    return Status::io(path + ": is a pipe, socket or device; expected a regular file");
  }
  *bytes = static_cast<uint64_t>(info.st_size);
  return {};
}

Status read_all(int fd, const std::string& path, uint64_t bytes, uint64_t max_bytes,
                std::vector<std::byte>* out) {
  if (bytes > max_bytes) {
    return Status::invalid(path + ": has " + std::to_string(bytes) + " bytes; expected at most " +
                           std::to_string(max_bytes));
  }
  out->resize(bytes);
  uint64_t done = 0;
  while (done < bytes) {
    ssize_t got = ::read(fd, out->data() + done, bytes - done);
    if (got < 0) {
      if (errno == EINTR) continue;
      return Status::io(path + ": cannot be read: " + reason(errno));
    }
    if (got == 0) {
      return Status::io(path + ": became shorter while it was read: got " + std::to_string(done) +
                        " bytes; expected " + std::to_string(bytes));
    }
    done += static_cast<uint64_t>(got);
  }
  return {};
}

// Opens part by part and follows no link: for kernels without openat2.
int open_without_links(int folder, std::string_view relative) {
  int at = folder;
  while (true) {
    const size_t slash = relative.find('/');
    const bool last = slash == std::string_view::npos;
    const std::string part(relative.substr(0, slash));
    const int fd =
        openat(at, part.c_str(), (last ? kOpenFlags : O_PATH | O_DIRECTORY | O_CLOEXEC) | O_NOFOLLOW);
    const int error = errno;
    if (at != folder) close(at);
    errno = error;
    if (fd < 0 || last) return fd;
    at = fd;
    relative.remove_prefix(slash + 1);
  }
}

}  // namespace

Status read_file(const std::string& path, uint64_t max_bytes, std::vector<std::byte>* out) {
  const int fd = ::open(path.c_str(), kOpenFlags);
  if (fd < 0) return Status::io(path + ": cannot be opened: " + reason(errno));
  uint64_t bytes = 0;
  Status status = check_regular(fd, path, &bytes);
  if (status.ok()) status = read_all(fd, path, bytes, max_bytes, out);
  close(fd);
  return status;
}

Folder::~Folder() {
  if (fd_ >= 0) close(fd_);
}

Folder::Folder(Folder&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

Status Folder::open(const std::string& path, Folder* out) {
  Folder folder;
  folder.path_ = path;
  while (folder.path_.size() > 1 && folder.path_.back() == '/') folder.path_.pop_back();
  folder.fd_ = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder.fd_ < 0) {
    if (errno == ENOTDIR) return Status::io(path + ": is not a folder");
    return Status::io(path + ": cannot be opened: " + reason(errno));
  }
  *out = std::move(folder);
  return {};
}

std::string Folder::path_of(std::string_view relative) const {
  std::string path = path_;
  if (path.empty() || path.back() != '/') path += '/';
  path += relative;
  return path;
}

Status Folder::open_file(std::string_view relative, int* fd, uint64_t* bytes) const {
  const std::string path = path_of(relative);
  if (std::string error = relative_path_error(relative); !error.empty()) {
    return Status::invalid(path_ + ": \"" + std::string(relative) + "\" " + error);
  }
  struct open_how how = {};
  how.flags = kOpenFlags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const std::string name(relative);
  int opened = static_cast<int>(syscall(SYS_openat2, fd_, name.c_str(), &how, sizeof(how)));
  bool links = true;
  // Container sandboxes answer EPERM to system calls that they do not know.
  if (opened < 0 && (errno == ENOSYS || errno == EPERM)) {
    opened = open_without_links(fd_, relative);
    links = false;
  }
  if (opened < 0) {
    if (links && errno == EXDEV) {
      return Status::invalid(path + ": a link leads out of the folder " + path_ + "; expected a file in it");
    }
    if (!links && (errno == ELOOP || errno == ENOTDIR)) {
      return Status::invalid(path + ": is a link or lies behind one; expected a file in " + path_);
    }
    return Status::io(path + ": cannot be opened: " + reason(errno));
  }
  Status status = check_regular(opened, path, bytes);
  if (!status.ok()) {
    close(opened);
    return status;
  }
  *fd = opened;
  return {};
}

Status Folder::read(std::string_view relative, uint64_t max_bytes, std::vector<std::byte>* out) const {
  int fd = -1;
  uint64_t bytes = 0;
  Status status = open_file(relative, &fd, &bytes);
  if (!status.ok()) return status;
  status = read_all(fd, path_of(relative), bytes, max_bytes, out);
  close(fd);
  return status;
}

Status Folder::size(std::string_view relative, uint64_t* bytes) const {
  int fd = -1;
  Status status = open_file(relative, &fd, bytes);
  if (status.ok()) close(fd);
  return status;
}

std::string relative_path_error(std::string_view path, std::string_view folder) {
  const std::string inside(folder);
  if (path.empty()) return "is empty; expected a path relative to " + inside;
  if (path.front() == '/') return "is absolute; expected a path relative to " + inside;
  for (char c : path) {
    if (c == '\\') return "has a backslash; expected forward slashes";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "has a control character";
  }
  // C1 controls, in UTF-8.
  for (size_t at = path.find('\xc2'); at != std::string_view::npos; at = path.find('\xc2', at + 1)) {
    if (at + 1 < path.size() && static_cast<unsigned char>(path[at + 1]) < 0xa0) {
      return "has a control character";
    }
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t slash = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, slash - begin);
    if (part == "..") return "has \"..\"; expected a path within " + inside;
    if (part == ".") return "has a part \".\"; expected a plain path";
    if (part.empty()) return "has an empty part; expected a plain path";
    begin = slash + 1;
  }
  return "";
}

}  // namespace mla::files

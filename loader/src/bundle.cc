// SPDX-License-Identifier: Apache-2.0
#include "loader/src/bundle.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <span>
#include <system_error>
#include <thread>

#include "kernels/common/mla_params.h"
#include "loader/src/prepare.h"
#include "manifest/cubin.h"
#include "manifest/json.h"
#include "manifest/sha256.h"

mla_bundle::mla_bundle() = default;
mla_bundle::~mla_bundle() {
  // Volatile: the compiler would leave out a store to what is gone afterwards.
  *const_cast<volatile uint64_t*>(&magic) = 0;
}

namespace mla::loader {
namespace {

constexpr const char* kPathVariable = "MLA_BUNDLE_PATH";
constexpr const char* kDefaultFolder = "mla_bundle";

// Files are checked by several threads when there is this much to hash.
constexpr uint64_t kParallelBytes = 4u << 20;
constexpr unsigned kMaxThreads = 8;

// The folder that this library lies in.
Error library_folder(std::string* out) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 || info.dli_fname == nullptr) {
    return {MLA_ERROR_IO,
            text("the folder of this library cannot be found: give a path or set ", kPathVariable)};
  }
  char resolved[PATH_MAX];
  if (realpath(info.dli_fname, resolved) == nullptr) {
    return {MLA_ERROR_IO, text(info.dli_fname, ": cannot be resolved: ", std::strerror(errno),
                               ": give a path or set ", kPathVariable)};
  }
  const std::string_view file = resolved;
  *out = file.substr(0, file.rfind('/'));
  return {};
}

// Adds to a message how the path came about, where the caller did not give it.
Error with_origin(Error error, const std::string& origin) {
  if (!error.ok()) error.message() += origin;
  return error;
}

bool is_hex_digest(std::string_view digest) {
  return digest.size() == 64 && std::all_of(digest.begin(), digest.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
         });
}

bool same_digest(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::string pointer(uint32_t index, const char* field) { return text("/kernels/", index, "/", field); }

Error check_size(const mla_bundle& bundle, const files::Folder& folder, uint32_t index) {
  const manifest::Kernel& kernel = bundle.manifest.kernels[index];
  uint64_t bytes = 0;
  if (Error error = from_status(folder.size(kernel.file, &bytes)); !error.ok()) return error;
  if (bytes == kernel.size) return {};
  return {MLA_ERROR_INVALID_BUNDLE,
          text(folder.path_of(kernel.file), ": has ", bytes, " bytes; ", manifest::kManifestFile, " says ",
               kernel.size, " at ", pointer(index, "size"))};
}

// As read_cubin, into a buffer that is used again.
Error read_checked(const mla_bundle& bundle, const files::Folder& folder, uint32_t index,
                   std::vector<std::byte>* image) {
  const manifest::Kernel& kernel = bundle.manifest.kernels[index];
  if (Error error = check_size(bundle, folder, index); !error.ok()) return error;
  if (Error error = from_status(folder.read(kernel.file, kernel.size, image)); !error.ok()) return error;
  const std::string path = folder.path_of(kernel.file);
  const std::span<const std::byte> bytes = *image;
  if (const std::string found = sha256_hex(bytes); found != kernel.sha256) {
    return {MLA_ERROR_INVALID_BUNDLE, text(path, ": has sha256 ", found, "; ", manifest::kManifestFile,
                                           " says ", kernel.sha256, " at ", pointer(index, "sha256"))};
  }
  // Of a kernel that this library does not know, no more than the bytes is promised.
  if (!bundle.unusable[index].empty()) return {};
  return from_status(cubin::check(bytes, path, kernel.target.sm, kernel.symbol));
}

// Checks every file. The error is that of the first faulty kernel, however many threads there are.
Error check_files(const mla_bundle& bundle) {
  const uint32_t count = static_cast<uint32_t>(bundle.manifest.kernels.size());
  uint64_t total = 0;
  for (const manifest::Kernel& kernel : bundle.manifest.kernels) total += kernel.size;

  std::atomic<uint32_t> next = 0;
  std::atomic<uint32_t> first_bad = count;
  std::atomic<bool> out_of_memory = false;
  std::mutex mutex;
  Error first_error;
  const auto work = [&]() noexcept {
    try {
      std::vector<std::byte> image;
      for (uint32_t i = next++; i < count && i < first_bad; i = next++) {
        Error error = read_checked(bundle, bundle.folder, i, &image);
        if (error.ok()) continue;
        const std::lock_guard lock(mutex);
        if (i < first_bad) {
          first_bad = i;
          first_error = std::move(error);
        }
      }
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  };

  std::vector<std::thread> threads;
  if (total >= kParallelBytes) {
    const unsigned wanted = std::min({std::thread::hardware_concurrency(), kMaxThreads, count});
    try {
      threads.reserve(wanted);
      while (threads.size() + 1 < wanted) threads.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads to be had: those that run and this one do the work.
    } catch (const std::bad_alloc&) {
      // Nor memory for one.
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (out_of_memory) return {MLA_ERROR_OUT_OF_MEMORY, "out of host memory while the cubins were checked"};
  return first_error;
}

Error read_manifest(const mla_open_options& options, mla_bundle* bundle) {
  std::vector<std::byte> bytes;
  if (Error error =
          from_status(bundle->folder.read(manifest::kManifestFile, manifest::kMaxManifestBytes, &bytes));
      !error.ok()) {
    return error;
  }
  const std::string file = bundle->folder.path_of(manifest::kManifestFile);
  bundle->manifest_sha256 = sha256_hex(bytes);
  if (options.manifest_sha256 != nullptr && !same_digest(options.manifest_sha256, bundle->manifest_sha256)) {
    return {MLA_ERROR_INVALID_BUNDLE, text(file, ": has sha256 ", bundle->manifest_sha256,
                                           "; options.manifest_sha256 is ", options.manifest_sha256)};
  }
  const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return from_status(manifest::parse(content, file, &bundle->manifest));
}

}  // namespace

Error read_cubin(const mla_bundle& bundle, uint32_t index, std::vector<std::byte>* image) {
  Error error = read_checked(bundle, bundle.folder, index, image);
  if (error.ok()) return error;
  // The folder that was opened may be gone, and another in its place: a bundle that was built again or
  // copied anew. It serves as well if it is the same bundle.
  files::Folder folder;
  std::vector<std::byte> manifest;
  if (!files::Folder::open(bundle.path, &folder).ok() ||
      !folder.read(manifest::kManifestFile, manifest::kMaxManifestBytes, &manifest).ok()) {
    return error;
  }
  if (const std::string found = sha256_hex(manifest); found != bundle.manifest_sha256) {
    return {MLA_ERROR_INVALID_BUNDLE,
            text(folder.path_of(manifest::kManifestFile), ": has sha256 ", found, ", and ",
                 bundle.manifest_sha256,
                 " when the bundle was opened: it was replaced by another bundle since; open it again")};
  }
  return read_checked(bundle, folder, index, image);
}

Error open_bundle(const char* path, const mla_open_options& options, std::unique_ptr<mla_bundle>* out) {
  if ((options.flags & ~MLA_OPEN_SKIP_HASH) != 0) {
    return invalid_argument("options.flags is ", Hex{options.flags},
                            "; allowed: 0, MLA_OPEN_SKIP_HASH (0x1)");
  }
  if (options.manifest_sha256 != nullptr && !is_hex_digest(options.manifest_sha256)) {
    return invalid_argument("options.manifest_sha256 is ", json::quote(options.manifest_sha256),
                            "; must be 64 hex digits, or null for any manifest");
  }
  auto bundle = std::make_unique<mla_bundle>();
  std::string origin;
  if (path != nullptr) {
    if (path[0] == '\0') return invalid_argument("path is empty; give the folder of a bundle, or null");
    bundle->path = path;
  } else if (const char* variable = secure_getenv(kPathVariable);
             variable != nullptr && variable[0] != '\0') {
    bundle->path = variable;
    origin = text(" (the path is that of ", kPathVariable, ")");
  } else {
    if (Error error = library_folder(&bundle->path); !error.ok()) return error;
    bundle->path += text("/", kDefaultFolder);
    origin = text(" (no path was given and ", kPathVariable, " is not set: looked beside the library)");
  }
  if (Error error = from_status(files::Folder::open(bundle->path, &bundle->folder)); !error.ok()) {
    return with_origin(std::move(error), origin);
  }
  if (Error error = read_manifest(options, bundle.get()); !error.ok()) {
    return with_origin(std::move(error), origin);
  }

  const std::vector<manifest::Kernel>& kernels = bundle->manifest.kernels;
  for (const manifest::Kernel& kernel : kernels) {
    bundle->target_names.push_back(kernel.target.name());
    bundle->unusable.push_back(unusable_reason(kernel));
  }
  bundle->selector = Selector(bundle->manifest.kernels, bundle->unusable);
  bundle->workspace = workspace_layout(kernels, bundle->unusable);
  bundle->loaded = std::make_unique<LoadedKernel[]>(kernels.size());

  if ((options.flags & MLA_OPEN_SKIP_HASH) == 0) {
    if (Error error = check_files(*bundle); !error.ok()) return with_origin(std::move(error), origin);
  } else {
    for (uint32_t i = 0; i < kernels.size(); ++i) {
      if (Error error = check_size(*bundle, bundle->folder, i); !error.ok())
        return with_origin(std::move(error), origin);
    }
  }
  *out = std::move(bundle);
  return {};
}

}  // namespace mla::loader

// SPDX-License-Identifier: Apache-2.0
//
// An open bundle: its manifest, its folder, and what was prepared from it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "loader/include/mla_loader.h"
#include "loader/src/cuda_abi.h"
#include "loader/src/error.h"
#include "loader/src/select.h"
#include "loader/src/workspace.h"
#include "manifest/files.h"
#include "manifest/manifest.h"

namespace mla::loader {

// What a handle begins with while it is one: "MLABUNDL", "MLAKERNL".
inline constexpr uint64_t kBundleMagic = 0x4c444e5542414c4d;
inline constexpr uint64_t kKernelMagic = 0x4c4e52454b414c4d;

// The driver's side of one kernel of a bundle. The mutex is held while a kernel is prepared, never
// on the way of a launch.
struct LoadedKernel {
  std::mutex mutex;
  // Loaded once for all devices; null when no prepared kernel uses it.
  cuda::Library library = nullptr;
  cuda::Kernel kernel = nullptr;
  // Devices whose attributes are set.
  std::vector<cuda::Device> devices;
  // One a context; their addresses are the handles that callers hold.
  std::vector<std::unique_ptr<mla_kernel>> prepared;
  // Devices whose driver refused the image or whose limits the kernel exceeds.
  std::vector<cuda::Device> refused;
};

}  // namespace mla::loader

struct mla_bundle {
  uint64_t magic = mla::loader::kBundleMagic;

  // Out of line, for mla_kernel is complete there.
  mla_bundle();
  ~mla_bundle();
  mla_bundle(const mla_bundle&) = delete;
  mla_bundle& operator=(const mla_bundle&) = delete;

  std::string path;
  std::string manifest_sha256;
  mla::manifest::Manifest manifest;
  mla::files::Folder folder;
  std::vector<std::string> target_names;  // "sm_120f", a kernel each
  std::vector<std::string> unusable;      // why a kernel cannot be launched, "" if it can
  mla::loader::Selector selector;
  mla::loader::WorkspaceLayout workspace;
  std::unique_ptr<mla::loader::LoadedKernel[]> loaded;  // a kernel each
};

namespace mla::loader {

// As mla_bundle_open documents; `path` may be null.
Error open_bundle(const char* path, const mla_open_options& options, std::unique_ptr<mla_bundle>* out);

// Reads kernel `index` and checks its size, hash and structure.
Error read_cubin(const mla_bundle& bundle, uint32_t index, std::vector<std::byte>* image);

}  // namespace mla::loader

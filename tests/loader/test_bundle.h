// SPDX-License-Identifier: Apache-2.0
//
// Bundles made on the fly: small cubins that pass every structural check, and their manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "manifest/manifest.h"

namespace mla::test {

// The smallest ELF that the cubin reader accepts: one kernel `symbol` for `sm`, padded with code to
// `bytes` (0: as small as can be). Section headers come last.
std::string make_cubin(uint32_t sm, const std::string& symbol, size_t bytes = 0);

// A kernel of the cluster family as the default matrix has it; tests change what they are about.
manifest::Kernel make_kernel(const std::string& id, uint32_t sm, const std::string& suffix);

// A merge kernel of bf16 partial results.
manifest::Kernel make_merge_kernel(const std::string& id, uint32_t sm, const std::string& suffix);

class TestBundle {
 public:
  // An empty bundle in a new folder below the system's folder for temporary files.
  TestBundle();
  ~TestBundle();
  TestBundle(const TestBundle&) = delete;
  TestBundle& operator=(const TestBundle&) = delete;

  manifest::Kernel& add(const std::string& id, uint32_t sm = 120, const std::string& suffix = "f");

  manifest::Kernel& add(manifest::Kernel kernel);

  // Writes cubins of `cubin_bytes` each, fills in their sizes and hashes, and writes the manifest.
  void write(size_t cubin_bytes = 0);
  // Writes manifest.json alone, from the kernels as they are.
  void write_manifest();
  // Replaces the first `from` in manifest.json, which must be there.
  void edit_manifest(const std::string& from, const std::string& to);

  std::string file(const std::string& relative) const { return (folder_ / relative).string(); }
  std::string path() const { return folder_.string(); }
  manifest::Manifest& manifest() { return manifest_; }

 private:
  std::filesystem::path folder_;
  manifest::Manifest manifest_;
};

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace mla::test

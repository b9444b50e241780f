// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a bundle: its C++ form, strict reading, and writing. Shared by the generator and
// the loader. Nothing here calls CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/status.h"

namespace mla::manifest {

inline constexpr std::string_view kFormatName = "mla-bundle";
inline constexpr uint32_t kFormatMajor = 1;
inline constexpr uint32_t kFormatMinor = 0;
inline constexpr std::string_view kManifestFile = "manifest.json";
// More is not read. A manifest of 500 kernels has about 1 MB.
inline constexpr uint64_t kMaxManifestBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMaxCubinBytes = uint64_t{64} << 20;

struct Target {
  uint32_t sm = 0;           // 90, 120
  std::string suffix;        // "", "a" or "f"
  std::string name() const;  // "sm_120f"
};

// A cubin does not tell how much was spilled; null in the JSON.
inline constexpr uint32_t kSpillUnknown = UINT32_MAX;

struct Resources {
  uint32_t registers = 0;    // a thread's
  uint32_t spill_bytes = 0;  // a thread's, the larger of ptxas's spill stores and spill loads
  uint32_t stack_bytes = 0;  // a thread's
  uint32_t static_smem = 0;  // a CTA's, bytes
};

struct Kernel {
  std::string id;
  std::string file;    // relative to the bundle, forward slashes
  uint64_t size = 0;   // bytes
  std::string sha256;  // 64 lower-case hex digits
  Target target;
  std::string symbol;
  // As in the cubin's constants (kernels/common/mla_cubin_info.h). A field that the kind does not
  // have is 0, and so is a word that this reader does not know.
  cubin::Facts facts;
  Resources resources;
  std::string min_driver;  // "580.65.06"
  // Why this reader cannot use the kernel, "" if it can: `its kind is "sparse_decode", which this
  // program does not know`. Then facts may be incomplete, and of an unknown kind or requirement
  // only `kind` and `requires_bits` were read. Whether there is code that fills the named version of
  // the parameter struct is for the caller to say.
  std::string unknown;
};

struct Manifest {
  uint32_t format_major = kFormatMajor;
  uint32_t format_minor = kFormatMinor;
  std::string name;
  std::string version;
  std::string toolkit;      // "13.0.88"
  std::string source_hash;  // 64 lower-case hex digits
  std::vector<Kernel> kernels;
};

// Reads manifest text strictly: duplicate keys, wrong types, missing fields, absolute paths, "..",
// values that contradict each other and unknown majors are refused; unknown keys are ignored. The
// message gives `file`, the JSON pointer and the reason.
//
// A kind, word, requirement or feature that this reader does not know makes its kernel one with a
// reason in `unknown`, never the manifest a wrong one: a bundle of a later release may hold kernels
// of new kinds beside those that this reader knows.
Status parse(std::string_view text, std::string_view file, Manifest* out);

// The canonical text of a manifest: stable key order, two-space indent, newline at the end.
std::string write(const Manifest& manifest);
// The same of one kernel's entry alone.
std::string write(const Kernel& kernel);

}  // namespace mla::manifest

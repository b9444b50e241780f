// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a bundle: its C++ form, strict reading, and writing. Shared by the generator and
// the loader. Nothing here calls CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/status.h"

namespace mla::manifest {

inline constexpr std::string_view kFormatName = "mla-bundle";
inline constexpr uint32_t kFormatMajor = 1;
inline constexpr uint32_t kFormatMinor = 0;
inline constexpr std::string_view kManifestFile = "manifest.json";

struct Target {
  uint32_t sm = 0;           // 90, 120
  std::string suffix;        // "", "a" or "f"
  std::string name() const;  // "sm_120f"
};

// Numbers as in kernels/common/mla_cubin_info.h; the JSON spells dtypes, family and mma as words
// ("e4m3", "bf16"; "cluster", "hopper"; "plain", "block_scaled").
struct Config {
  uint32_t family = 0;
  uint32_t mma = 0;
  uint32_t q_dtype = 0, kv_dtype = 0, out_dtype = 0;
  uint32_t rows = 0;
  uint32_t head_dim_k = 0, head_dim_v = 0;
  uint32_t tile_tokens = 0;
  uint32_t page_size_min = 0, page_size_max = 0;
  uint32_t k_box = 0, k_swizzle = 0, v_box = 0, v_swizzle = 0;
  uint32_t features = 0;
};

struct Launch {
  uint32_t threads = 0;
  uint32_t cluster_size = 0;
  uint32_t dynamic_smem = 0;  // bytes
  int32_t carveout = 0;       // percent of shared memory preferred
};

// A cubin does not tell how much was spilled; null in the JSON.
inline constexpr uint32_t kSpillUnknown = UINT32_MAX;

struct Resources {
  uint32_t registers = 0;    // a thread's
  uint32_t spill_bytes = 0;  // a thread's, the larger of ptxas's spill stores and spill loads
  uint32_t stack_bytes = 0;  // a thread's
  uint32_t static_smem = 0;  // a CTA's, bytes
};

struct ParamLayout {
  uint32_t version = 0;  // mla::kParamsVersion
  uint32_t bytes = 0;    // sizeof(mla::DecodeParams), as the cubin's parameter info says
};

struct Kernel {
  std::string id;
  std::string file;    // relative to the bundle, forward slashes
  uint64_t size = 0;   // bytes
  std::string sha256;  // 64 lower-case hex digits
  Target target;
  std::string symbol;
  Config config;
  Launch launch;
  Resources resources;
  ParamLayout params;
  std::string min_driver;  // "580.65.06"
  int32_t priority = 0;    // higher wins between otherwise equal kernels
  // Words of this entry that the reader does not know (see UnknownWords): `family is "tree"`. The
  // numbers that such words stand for are 0.
  std::string unknown_words;
};

struct Manifest {
  uint32_t format_major = kFormatMajor;
  uint32_t format_minor = kFormatMinor;
  std::string name;
  std::string version;
  std::string toolkit;      // "13.0.88"
  std::string source_hash;  // 64 lower-case hex digits
  uint32_t params_version = 0;
  std::vector<Kernel> kernels;
};

// Reads manifest text strictly: duplicate keys, wrong types, missing fields, absolute paths, ".."
// and unknown majors are refused; unknown keys are ignored. The message gives `file`, the JSON
// pointer and the reason.
//
// kKeep: a target suffix, family, mma or dtype that is any other word makes its kernel one with
// unknown_words instead of sinking the whole manifest, for a bundle of a later release may hold
// kernels of new kinds beside those that this reader knows.
enum class UnknownWords { kRefuse, kKeep };
Status parse(std::string_view text, std::string_view file, Manifest* out,
             UnknownWords unknown_words = UnknownWords::kRefuse);

// The canonical text of a manifest: stable key order, two-space indent, newline at the end.
std::string write(const Manifest& manifest);

}  // namespace mla::manifest

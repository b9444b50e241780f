// SPDX-License-Identifier: Apache-2.0
//
// A conformance case: a fragment of PTX, the operands that it is fed, and how its results are
// compared with those recorded on a GPU.
//
// The runner wraps the fragment in a kernel. Every thread loads its inputs into registers i0, i1, ...,
// runs the fragment and stores the registers o0, o1, .... At the fragment's disposal:
//   tidx, lane, gidx      .b32  thread in the CTA, in the warp, in the grid (one-dimensional)
//   pmem                  .b64  generic address of kMemBytes of memory, filled with kMemFill, whose
//                               final content is a result too when `uses_mem` is set
//   psrc                  .b64  generic address of kSrcBytes of fixed random bytes
//   pmap                  .b64  generic address of the tensor map, when there is one
//   p0-p7 .pred, h0-h15 .b16, r0-r63 .b32, d0-d31 .b64   to use freely
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mla::conformance {

inline constexpr uint32_t kMemBytes = 32768;
inline constexpr uint32_t kMemFill = 0x01010101;
inline constexpr uint32_t kSrcBytes = 65536;

// Values of one operand for all threads, a 64-bit slot each.
using Values = std::vector<uint64_t>;

struct TensorMapSpec {
  uint32_t type = 0;      // CUtensorMapDataType
  bool over_mem = false;  // over pmem (stores) instead of psrc (loads)
  std::vector<uint64_t> dims;
  std::vector<uint64_t> strides;  // bytes, of dimensions 1...
  std::vector<uint32_t> box;
  uint32_t swizzle = 0;   // CUtensorMapSwizzle
  uint32_t fill_nan = 0;  // CUtensorMapFloatOOBfill
};

enum class Compare {
  kExact,     // bit for bit
  kUlp,       // float: at most `tolerance` units in the last place; specials exact
  kRelative,  // float: |difference| <= tolerance * max(|recorded|) over the operand; specials exact
};

struct Case {
  std::string name;
  std::vector<std::string> in;   // types of i0, i1, ... (see values.h)
  std::vector<std::string> out;  // types of o0, o1, ...: b16, b32, b64, f32, f64, f16, bf16
  std::string body;
  std::string target = "sm_90a";
  std::string module;  // declarations at module scope
  uint32_t grid = 8;
  uint32_t block = 128;
  uint32_t cluster = 1;
  uint32_t dynamic_smem = 0;
  bool exhaustive = false;  // i0 counts 0, 1, 2, ... over the threads instead of random values
  bool uses_mem = false;
  std::vector<TensorMapSpec> tensor_map = {};  // none or one
  Compare compare = Compare::kExact;
  double tolerance = 0;
  // For forms that the recording GPU lacks: the results from the inputs, written out from the PTX
  // manual's tables. Takes inputs by operand, gives outputs by operand.
  std::function<std::vector<Values>(const Case&, const std::vector<Values>&)> expect = {};

  uint32_t threads() const { return grid * block; }
};

// The PTX module of a case.
std::string module_text(const Case& c);

// Every case, in a fixed order; names are unique.
std::vector<Case> all_cases();

void add_integer_cases(std::vector<Case>* cases);
void add_float_cases(std::vector<Case>* cases);
void add_convert_cases(std::vector<Case>* cases);
void add_memory_cases(std::vector<Case>* cases);
void add_warp_cases(std::vector<Case>* cases);
void add_matrix_cases(std::vector<Case>* cases);
void add_async_cases(std::vector<Case>* cases);
void add_cluster_cases(std::vector<Case>* cases);
void add_sm120_cases(std::vector<Case>* cases);

}  // namespace mla::conformance

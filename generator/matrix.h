// SPDX-License-Identifier: Apache-2.0
//
// The matrix: which configurations of which kernel families are built for which targets, and what
// each of them must come out as. manifest/matrix.json is the default one; manifest/README.md tells
// the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/manifest.h"
#include "manifest/status.h"

namespace mla::generator {

// What a cubin may use at most: registers, spill_bytes, stack_bytes (a thread), static_smem (a CTA),
// cubin_bytes (the file), and numbers of the field table, for instance dynamic_smem.
using Limits = std::map<std::string, uint32_t, std::less<>>;

// One cubin to build.
struct Configuration {
  std::string id;      // "cluster_e4m3_e4m3_bf16_r128_plain_sm_120f"
  std::string symbol;  // "mla_cluster_e4m3_e4m3_bf16_r128_plain"
  uint32_t kind = 0;
  uint32_t family = 0;
  std::string source;  // relative to the source folder
  manifest::Target target;
  std::vector<std::string> flags;                                   // of nvcc
  std::vector<std::pair<std::string, std::string>> macros;          // name, value
  std::vector<std::pair<const cubin::Field*, uint32_t>> constants;  // what the cubin must say it is
  Limits limits;
  int32_t priority = 0;
  int32_t carveout = 0;  // percent of shared memory preferred, or -1
};

// A combination of the axes that no kernel is built for.
struct Refusal {
  std::string id;
  std::string reason;
};

struct Expansion {
  std::vector<Configuration> configurations;  // sorted by id
  std::vector<Refusal> refusals;              // sorted by id
};

struct Condition {
  std::map<std::string, std::vector<std::string>> allowed;  // axis or "target" -> values
};

struct AxisValue {
  std::string id;
  std::string define;  // value of the axis's macro
  uint32_t is = 0;     // value of the axis's constant
};

struct Axis {
  std::string name;
  const cubin::Field* constant = nullptr;  // may be null
  std::string macro;                       // may be empty
  std::vector<AxisValue> values;
};

struct Rule {
  Condition when, require;
  std::string why;
};

struct PriorityRule {
  Condition when;
  int32_t priority = 0;
};

struct LimitRule {
  Condition when;
  Limits max;
};

struct Family {
  std::string name;
  uint32_t family = 0;
  uint32_t kind = 0;
  std::string source;
  std::vector<std::string> flags;
  int32_t carveout = 0;
  std::vector<Axis> axes;
  std::vector<Rule> rules;
  std::vector<PriorityRule> priorities;
  std::vector<LimitRule> limits;  // a later one overrides an earlier one, limit by limit
};

struct Matrix {
  std::string name;     // of the bundle
  std::string version;  // of the bundle
  std::vector<manifest::Target> targets;
  std::vector<Family> families;
};

// Reads matrix text strictly; unlike in a manifest, unknown keys are refused: the text is our own.
Status parse_matrix(std::string_view text, std::string_view file, Matrix* out);

struct Selection {
  std::vector<std::string> targets;  // empty: all of the matrix
  std::string filter;                // POSIX extended regular expression searched in the id; empty: all
};

// Expands the matrix. Refuses (kInvalid) a target that the matrix does not have, a filter that is
// no regular expression, and two configurations of one id.
Status expand(const Matrix& matrix, const Selection& selection, Expansion* out);

}  // namespace mla::generator

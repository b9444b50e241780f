// SPDX-License-Identifier: Apache-2.0
//
// The words that JSON uses for the numbers of kernels/common/mla_cubin_info.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/json.h"

namespace mla::manifest {

inline constexpr json::Word kFamilyWords[] = {{"cluster", cubin::kFamilyCluster},
                                              {"hopper", cubin::kFamilyHopper}};
inline constexpr json::Word kDTypeWords[] = {{"e4m3", cubin::kE4M3}, {"bf16", cubin::kBF16}};
inline constexpr json::Word kMmaWords[] = {{"plain", cubin::kMmaPlain},
                                           {"block_scaled", cubin::kMmaBlockScaled}};
inline constexpr json::Word kFeatureWords[] = {{"lse", cubin::kFeatureLse},
                                               {"pdl", cubin::kFeaturePdl},
                                               {"separate_values", cubin::kFeatureSeparateValues}};
inline constexpr json::Word kSuffixWords[] = {{"", 0}, {"a", 'a'}, {"f", 'f'}};

// The word for `number`, "" if it has none.
constexpr std::string_view word_for(std::span<const json::Word> words, uint32_t number) {
  for (const json::Word& word : words) {
    if (word.number == number) return word.text;
  }
  return "";
}

// Rules for text fields, shared by manifests and matrices.
bool is_name(std::string_view text);        // letters, digits, '_', '-', '.', '+'
bool is_identifier(std::string_view text);  // of C
bool is_version(std::string_view text);     // digits with dots between, "13.0.88"
bool is_sha256(std::string_view text);      // 64 lower-case hex digits

// "sm_120f" -> {120, "f"}; false if `text` is no target name.
struct Target;
bool parse_target(std::string_view text, Target* out);

}  // namespace mla::manifest

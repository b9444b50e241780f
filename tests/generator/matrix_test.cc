// SPDX-License-Identifier: Apache-2.0
#include "generator/matrix.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "manifest/fields.h"

namespace mla::generator {
namespace {

const nlohmann::json& good() {
  static const nlohmann::json json = nlohmann::json::parse(R"({
    "format": {"name": "mla-matrix", "major": 1},
    "bundle": {"name": "b", "version": "1"},
    "targets": {"sm_120f": "one", "sm_120a": "two", "sm_90a": "three"},
    "families": [
      {
        "name": "cluster", "source": "kernels/a.cu", "carveout": 50, "flags": ["-O3"],
        "axes": [
          {"name": "dtype", "constant": "kv_dtype", "values": [{"id": "e4m3", "is": "e4m3"}]},
          {"name": "rows", "constant": "rows", "macro": "MLA_ROWS", "why": "w",
           "values": [{"id": "r64", "is": 64, "define": "64"}, {"id": "r128", "is": 128, "define": "128"}]},
          {"name": "mma", "constant": "mma", "macro": "MLA_MMA", "why": "w",
           "values": [{"id": "plain", "is": "plain", "define": "0"},
                      {"id": "scaled", "is": "block_scaled", "define": "1"}]}
        ],
        "rules": [{"when": {"mma": ["scaled"]}, "require": {"target": ["sm_120f", "sm_120a"]}, "why": "sm_120 alone"},
                  {"when": {"mma": ["scaled"], "target": ["sm_120a"]}, "require": {"rows": ["r64"]}, "why": "too slow"}],
        "priorities": [{"when": {"mma": ["scaled"]}, "priority": 3, "why": "w"}],
        "limits": [{"max": {"registers": 168, "spill_bytes": 0}, "why": "w"},
                   {"when": {"target": ["sm_90a"]}, "max": {"spill_bytes": 64}, "why": "w"}]
      },
      {
        "name": "hopper", "source": "kernels/h.cu", "carveout": -1,
        "axes": [{"name": "kind", "values": [{"id": "fp8"}]}],
        "rules": [{"when": {}, "require": {"target": ["sm_90a"]}, "why": "wgmma is on sm_90a alone"}]
      }
    ]
  })");
  return json;
}

std::vector<std::string> ids(const Matrix& matrix, const Selection& selection) {
  Expansion expansion;
  const Status status = expand(matrix, selection, &expansion);
  if (!status.ok()) return {status.message()};
  std::vector<std::string> all;
  for (const Configuration& one : expansion.configurations) all.push_back(one.id);
  for (const Refusal& one : expansion.refusals) all.push_back("- " + one.id + ": " + one.reason);
  return all;
}

using Lines = std::vector<std::string>;

TEST(Matrix, ExpandsAxesTargetsAndRules) {
  Matrix matrix;
  const Status status = parse_matrix(good().dump(), "m.json", &matrix);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(matrix.name, "b");
  EXPECT_EQ(matrix.version, "1");
  const std::string alone = "sm_120 alone (mma = scaled requires target = sm_120f or sm_120a)";
  EXPECT_EQ(
      ids(matrix, {}),
      (Lines{
          "cluster_e4m3_r128_plain_sm_120a", "cluster_e4m3_r128_plain_sm_120f",
          "cluster_e4m3_r128_plain_sm_90a", "cluster_e4m3_r128_scaled_sm_120f",
          "cluster_e4m3_r64_plain_sm_120a", "cluster_e4m3_r64_plain_sm_120f", "cluster_e4m3_r64_plain_sm_90a",
          "cluster_e4m3_r64_scaled_sm_120a", "cluster_e4m3_r64_scaled_sm_120f", "hopper_fp8_sm_90a",
          "- cluster_e4m3_r128_scaled_sm_120a: too slow (mma = scaled and target = sm_120a requires rows = "
          "r64)",
          "- cluster_e4m3_r128_scaled_sm_90a: " + alone, "- cluster_e4m3_r64_scaled_sm_90a: " + alone,
          "- hopper_fp8_sm_120a: wgmma is on sm_90a alone (every configuration requires target = sm_90a)",
          "- hopper_fp8_sm_120f: wgmma is on sm_90a alone (every configuration requires target = sm_90a)"}));
}

TEST(Matrix, ConfigurationSaysWhatToBuildAndWhatItMustBe) {
  Matrix matrix;
  ASSERT_TRUE(parse_matrix(good().dump(), "m.json", &matrix).ok());
  Expansion expansion;
  ASSERT_TRUE(expand(matrix, {{"sm_120f"}, "r64_scaled"}, &expansion).ok());
  ASSERT_EQ(expansion.configurations.size(), 1u);
  const Configuration& one = expansion.configurations[0];
  EXPECT_EQ(one.id, "cluster_e4m3_r64_scaled_sm_120f");
  EXPECT_EQ(one.symbol, "mla_cluster_e4m3_r64_scaled");
  EXPECT_EQ(one.source, "kernels/a.cu");
  EXPECT_EQ(one.target.name(), "sm_120f");
  EXPECT_EQ(one.flags, Lines{"-O3"});
  EXPECT_EQ(one.macros,
            (std::vector<std::pair<std::string, std::string>>{{"MLA_ROWS", "64"}, {"MLA_MMA", "1"}}));
  EXPECT_EQ(one.constants,
            (std::vector<std::pair<const cubin::Field*, uint32_t>>{{manifest::find_field("kv_dtype"), 1u},
                                                                   {manifest::find_field("rows"), 64u},
                                                                   {manifest::find_field("mma"), 2u}}));
  EXPECT_EQ(one.kind, kind::kDECODE);
  EXPECT_EQ(one.family, family::kCLUSTER);
  EXPECT_EQ(one.priority, 3);
  EXPECT_EQ(one.carveout, 50);
  EXPECT_EQ(one.limits, (Limits{{"registers", 168}, {"spill_bytes", 0}}));
  ASSERT_TRUE(expand(matrix, {{"sm_90a"}, "r64_plain"}, &expansion).ok());
  EXPECT_EQ(expansion.configurations.at(0).limits, (Limits{{"registers", 168}, {"spill_bytes", 64}}));
  EXPECT_EQ(expansion.configurations.at(0).priority, 0);
}

TEST(Matrix, RefusesUnknownTargetsAndFilters) {
  Matrix matrix;
  ASSERT_TRUE(parse_matrix(good().dump(), "m.json", &matrix).ok());
  EXPECT_EQ(ids(matrix, {{"sm_121a"}, ""}),
            Lines{"--arch: no target \"sm_121a\" in the matrix; it has sm_120a, sm_120f, sm_90a"});
  EXPECT_EQ(ids(matrix, {{}, "("}), Lines{"--filter: \"(\" is no regular expression: Unmatched ( or \\("});
  EXPECT_EQ(ids(matrix, {{}, "^cluster.*(r64_plain|r128_scaled).*f$"}),
            (Lines{"cluster_e4m3_r128_scaled_sm_120f", "cluster_e4m3_r64_plain_sm_120f"}));
}

TEST(Matrix, RefusesTwoConfigurationsOfOneId) {
  nlohmann::json json = good();
  json["families"].push_back(json["families"][0]);
  Matrix matrix;
  ASSERT_TRUE(parse_matrix(json.dump(), "m.json", &matrix).ok());
  EXPECT_EQ(ids(matrix, {{"sm_90a"}, ""}), Lines{"the matrix gives two configurations the id "
                                                 "cluster_e4m3_r64_plain_sm_90a; expected different ids"});
}

TEST(Matrix, TheDefaultOneIsValid) {
  std::ifstream stream(MLA_SOURCE_DIR "/manifest/matrix.json");
  std::ostringstream text;
  text << stream.rdbuf();
  Matrix matrix;
  const Status status = parse_matrix(text.str(), "matrix.json", &matrix);
  ASSERT_TRUE(status.ok()) << status.message();
  Expansion expansion;
  ASSERT_TRUE(expand(matrix, {}, &expansion).ok());
  EXPECT_FALSE(expansion.configurations.empty());
  for (const Configuration& one : expansion.configurations) {
    // A target without suffix has neither setmaxnreg nor 8-bit ldmatrix.
    EXPECT_FALSE(one.target.suffix.empty()) << one.id;
    EXPECT_EQ(one.limits.count("spill_bytes"), 1u) << one.id;
    if (one.target.sm == 120 && one.kind == kind::kDECODE) {
      ASSERT_EQ(one.limits.count("dynamic_smem"), 1u) << one.id;
      EXPECT_LE(one.limits.at("dynamic_smem"), 101376u - 1024u) << one.id;
      ASSERT_EQ(one.limits.count("registers"), 1u) << one.id;
      EXPECT_LE(one.limits.at("registers"), 168u) << one.id;
    }
    EXPECT_TRUE(std::ifstream(MLA_SOURCE_DIR "/" + one.source).good()) << one.source;
  }
}

struct Case {
  const char* name;
  const char* patch;  // RFC 6902
  const char* error;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class BrokenMatrix : public testing::TestWithParam<Case> {};

TEST_P(BrokenMatrix, IsRefusedWithPointerAndReason) {
  Matrix matrix;
  const Status status =
      parse_matrix(good().patch(nlohmann::json::parse(GetParam().patch)).dump(), "m.json", &matrix);
  EXPECT_EQ(status.ok() ? "(no error)" : status.message(), std::string("m.json: ") + GetParam().error);
}

constexpr Case kCases[] = {
    {"unknown_key", R"([{"op": "add", "path": "/target", "value": 1}])",
     "(top level): unknown key \"target\"; expected only format, bundle, targets, families"},
    {"unknown_key_of_family", R"([{"op": "add", "path": "/families/0/priority", "value": 1}])",
     "/families/0: unknown key \"priority\"; expected only name, kind, source, flags, carveout, axes, rules, "
     "priorities, limits"},
    {"unknown_key_of_axis", R"([{"op": "add", "path": "/families/0/axes/1/default", "value": 1}])",
     "/families/0/axes/1: unknown key \"default\"; expected only name, constant, macro, why, values"},
    {"unknown_key_of_value", R"([{"op": "add", "path": "/families/0/axes/1/values/0/why", "value": "w"}])",
     "/families/0/axes/1/values/0: unknown key \"why\"; expected only id, is, define"},
    {"unknown_limit", R"([{"op": "add", "path": "/families/0/limits/0/max/spills", "value": 1}])",
     "/families/0/limits/0/max: no limit \"spills\"; expected one of registers, spill_bytes, stack_bytes, "
     "static_smem, cubin_bytes, or a number of kernels/common/mla_cubin_info.h"},
    {"limit_of_a_word", R"([{"op": "add", "path": "/families/0/limits/0/max/mma", "value": 1}])",
     "/families/0/limits/0/max: no limit \"mma\"; expected one of registers, spill_bytes, stack_bytes, "
     "static_smem, cubin_bytes, or a number of kernels/common/mla_cubin_info.h"},
    {"unknown_kind", R"([{"op": "add", "path": "/families/0/kind", "value": "append"}])",
     "/families/0/kind: got \"append\"; expected \"decode\" or \"merge\""},
    {"constant_of_another_kind", R"([{"op": "add", "path": "/families/0/kind", "value": "merge"}])",
     "/families/0/axes/0/constant: got \"kv_dtype\"; expected a constant of a merge kernel"},
    {"constant_that_stands_elsewhere",
     R"([{"op": "replace", "path": "/families/0/axes/1/constant", "value": "priority"}])",
     "/families/0/axes/1/constant: got \"priority\"; expected a constant of a configuration, for instance "
     "\"rows\""},
    {"is_out_of_range", R"([{"op": "replace", "path": "/families/0/axes/1/values/0/is", "value": 2048}])",
     "/families/0/axes/1/values/0/is: got 2048; expected an integer from 1 to 1024"},
    {"is_unknown_feature", R"([{"op": "replace", "path": "/families/0/axes/1/constant", "value": "features"},
                               {"op": "replace", "path": "/families/0/axes/1/values/0/is", "value": ["x"]}])",
     "/families/0/axes/1/values/0/is/0: got \"x\"; expected \"lse\", \"pdl\", \"separate_values\", "
     "\"strides\", \"ragged_q\", \"non_causal\", \"context_parallel\", \"fixed_split\", \"window\" or "
     "\"sparse\""},
    {"other_format", R"([{"op": "replace", "path": "/format/name", "value": "mla-bundle"}])",
     "/format/name: got \"mla-bundle\"; expected \"mla-matrix\""},
    {"newer_major", R"([{"op": "replace", "path": "/format/major", "value": 2}])",
     "/format/major: got 2; expected an integer from 1 to 1"},
    {"bad_bundle_name", R"([{"op": "replace", "path": "/bundle/name", "value": "a/b"}])",
     "/bundle/name: got \"a/b\"; expected 1 to 128 letters, digits and _ - . +"},
    {"no_targets", R"([{"op": "replace", "path": "/targets", "value": {}}])",
     "/targets: no target; expected at least one"},
    {"bad_target", R"([{"op": "add", "path": "/targets/compute_90", "value": "w"}])",
     "/targets: \"compute_90\" is no target; expected for instance \"sm_120f\""},
    {"target_without_reason", R"([{"op": "replace", "path": "/targets/sm_90a", "value": ""}])",
     "/targets/sm_90a: got \"\"; expected what the target is for, in words"},
    {"no_families", R"([{"op": "replace", "path": "/families", "value": []}])",
     "/families: no family; expected at least one"},
    {"family_is_text", R"([{"op": "replace", "path": "/families/1", "value": "hopper"}])",
     "/families/1: got \"hopper\"; expected an object"},
    {"unknown_family", R"([{"op": "replace", "path": "/families/0/name", "value": "volta"}])",
     "/families/0/name: got \"volta\"; expected \"cluster\", \"hopper\" or \"merge\""},
    {"source_missing", R"([{"op": "remove", "path": "/families/0/source"}])",
     "/families/0: \"source\" is missing; expected a path relative to the source folder"},
    {"source_absolute", R"([{"op": "replace", "path": "/families/0/source", "value": "/a.cu"}])",
     "/families/0/source: \"/a.cu\" is absolute; expected a path relative to the source folder"},
    {"source_with_quote", R"([{"op": "replace", "path": "/families/0/source", "value": "a'b.cu"}])",
     "/families/0/source: got \"a'b.cu\"; expected a path of letters, digits and _ - . /"},
    {"flag_without_dash", R"([{"op": "add", "path": "/families/0/flags/0", "value": "O3"}])",
     "/families/0/flags/0: \"O3\": expected an option of nvcc, starting with -"},
    {"flag_lineinfo", R"([{"op": "add", "path": "/families/0/flags/0", "value": "-lineinfo"}])",
     "/families/0/flags/0: \"-lineinfo\": line information holds paths, so the bytes would differ from "
     "folder to folder"},
    {"flag_arch", R"([{"op": "add", "path": "/families/0/flags/0", "value": "-arch=sm_90"}])",
     "/families/0/flags/0: \"-arch=sm_90\": set by the generator itself"},
    {"flag_maxrregcount", R"([{"op": "add", "path": "/families/0/flags/0", "value": "-maxrregcount=32"}])",
     "/families/0/flags/0: \"-maxrregcount=32\": say it in the kernel, with __launch_bounds__ or "
     "__maxnreg__"},
    {"flag_with_blank", R"([{"op": "add", "path": "/families/0/flags/0", "value": "-O3 -g"}])",
     "/families/0/flags/0: \"-O3 -g\": expected letters, digits and - _ = , . : +"},
    {"flag_absolute_path", R"([{"op": "add", "path": "/families/0/flags/0", "value": "-I/usr/include"}])",
     "/families/0/flags/0: \"-I/usr/include\": expected letters, digits and - _ = , . : +"},
    {"carveout_range", R"([{"op": "replace", "path": "/families/0/carveout", "value": 101}])",
     "/families/0/carveout: got 101; expected an integer from -1 to 100"},
    {"axes_missing", R"([{"op": "remove", "path": "/families/0/axes"}])",
     "/families/0: \"axes\" is missing; expected an array of axes"},
    {"axis_called_target", R"([{"op": "replace", "path": "/families/0/axes/1/name", "value": "target"}])",
     "/families/0/axes/1/name: got \"target\"; expected another name; targets stand in /targets"},
    {"axis_twice", R"([{"op": "replace", "path": "/families/0/axes/1/name", "value": "dtype"}])",
     "/families/0/axes/1/name: got \"dtype\"; expected a name of its own"},
    {"axis_without_reason", R"([{"op": "remove", "path": "/families/0/axes/1/why"}])",
     "/families/0/axes/1: \"why\" is missing; expected the reason, in words"},
    {"axis_without_values", R"([{"op": "replace", "path": "/families/0/axes/0/values", "value": []}])",
     "/families/0/axes/0/values: no value; expected at least one"},
    {"values_without_macro",
     R"([{"op": "add", "path": "/families/0/axes/0/values/1", "value": {"id": "bf16", "is": "bf16"}}])",
     "/families/0/axes/0: several values and no \"macro\": they would compile to the same code"},
    {"same_define", R"([{"op": "replace", "path": "/families/0/axes/1/values/1/define", "value": "64"}])",
     "/families/0/axes/1/values/1/define: got \"64\"; expected a value of its own: \"r64\" has the same and "
     "would compile "
     "to the same code"},
    {"same_value_id", R"([{"op": "replace", "path": "/families/0/axes/1/values/1/id", "value": "r64"}])",
     "/families/0/axes/1/values/1/id: got \"r64\"; expected an id of its own within the axis"},
    {"define_without_macro", R"([{"op": "add", "path": "/families/0/axes/0/values/0/define", "value": "1"}])",
     "/families/0/axes/0/values/0: \"define\" without a \"macro\" of the axis"},
    {"define_missing", R"([{"op": "remove", "path": "/families/0/axes/1/values/0/define"}])",
     "/families/0/axes/1/values/0: \"define\" is missing; expected the value of the macro, without spaces"},
    {"define_for_the_shell",
     R"([{"op": "replace", "path": "/families/0/axes/1/values/0/define", "value": "1;rm"}])",
     "/families/0/axes/1/values/0/define: got \"1;rm\"; expected the value of the macro, without spaces"},
    {"is_without_constant", R"([{"op": "add", "path": "/families/1/axes/0/values/0/is", "value": 1}])",
     "/families/1/axes/0/values/0: \"is\" without a \"constant\" of the axis"},
    {"is_missing", R"([{"op": "remove", "path": "/families/0/axes/1/values/0/is"}])",
     "/families/0/axes/1/values/0: \"is\" is missing; expected an integer from 1 to 1024"},
    {"is_unknown_word", R"([{"op": "replace", "path": "/families/0/axes/2/values/0/is", "value": "sparse"}])",
     "/families/0/axes/2/values/0/is: got \"sparse\"; expected \"plain\", \"block_scaled\" or \"wgmma\""},
    {"constant_unknown", R"([{"op": "replace", "path": "/families/0/axes/1/constant", "value": "colour"}])",
     "/families/0/axes/1/constant: got \"colour\"; expected a constant of a configuration, for instance "
     "\"rows\""},
    {"constant_twice", R"([{"op": "replace", "path": "/families/0/axes/0/constant", "value": "mma"},
                           {"op": "replace", "path": "/families/0/axes/0/values/0/is", "value": "plain"}])",
     "/families/0/axes/2/constant: got \"mma\"; expected a constant of its own; axis dtype has the same"},
    {"macro_twice", R"([{"op": "replace", "path": "/families/0/axes/2/macro", "value": "MLA_ROWS"}])",
     "/families/0/axes/2/macro: got \"MLA_ROWS\"; expected a macro of its own; axis rows has the same"},
    {"rule_of_no_axis", R"([{"op": "add", "path": "/families/0/rules/0/when/heads", "value": ["h"]}])",
     "/families/0/rules/0/when/heads: no axis \"heads\"; expected one of dtype, rows, mma, target"},
    {"rule_of_no_value",
     R"([{"op": "replace", "path": "/families/0/rules/0/when/mma/0", "value": "sparse"}])",
     "/families/0/rules/0/when/mma/0: axis mma has no value \"sparse\""},
    {"rule_of_no_target",
     R"([{"op": "replace", "path": "/families/0/rules/0/require/target/0", "value": "sm"}])",
     "/families/0/rules/0/require/target/0: got \"sm\"; expected a target, for instance \"sm_120f\""},
    {"rule_without_reason", R"([{"op": "remove", "path": "/families/0/rules/0/why"}])",
     "/families/0/rules/0: \"why\" is missing; expected the reason, in words"},
    {"rule_with_empty_list", R"([{"op": "replace", "path": "/families/0/rules/0/when/mma", "value": []}])",
     "/families/0/rules/0/when/mma: got an array; expected an array of at least one value"},
    {"rules_is_object", R"([{"op": "replace", "path": "/families/0/rules", "value": {}}])",
     "/families/0/rules: got an object; expected an array"},
    {"priority_is_text",
     R"([{"op": "replace", "path": "/families/0/priorities/0/priority", "value": "high"}])",
     "/families/0/priorities/0/priority: got \"high\"; expected an integer from -1000000 to 1000000"},
    {"limit_without_reason", R"([{"op": "remove", "path": "/families/0/limits/1/why"}])",
     "/families/0/limits/1: \"why\" is missing; expected the reason, in words"},
    {"limit_negative", R"([{"op": "replace", "path": "/families/0/limits/0/max/registers", "value": -1}])",
     "/families/0/limits/0/max/registers: got -1; expected an integer from 0 to 2147483647"},
};

INSTANTIATE_TEST_SUITE_P(Cases, BrokenMatrix, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(MatrixText, DuplicateKeysAreRefused) {
  Matrix matrix;
  EXPECT_EQ(parse_matrix(R"({"format": {"name": "mla-matrix", "name": "x"}})", "m.json", &matrix).message(),
            "m.json: /format: the key \"name\" stands twice; expected once");
}

}  // namespace
}  // namespace mla::generator

// SPDX-License-Identifier: Apache-2.0
#include "manifest/manifest.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/words.h"

namespace mla::manifest {
namespace {

std::string read(const std::string& name) {
  std::ifstream stream(std::string(MLA_TEST_DATA) + "/" + name, std::ios::binary);
  EXPECT_TRUE(stream) << name;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string error_of(const std::string& text) {
  Manifest manifest;
  const Status status = parse(text, "m.json", &manifest);
  return status.ok() ? "(no error)" : status.message();
}

TEST(Manifest, ReadsEveryField) {
  Manifest m;
  const Status status = parse(read("good_manifest.json"), "m.json", &m);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(m.format_major, 1u);
  EXPECT_EQ(m.format_minor, 0u);
  EXPECT_EQ(m.name, "mla-decode");
  EXPECT_EQ(m.version, "0.1.0");
  EXPECT_EQ(m.toolkit, "13.0.88");
  EXPECT_EQ(m.source_hash, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
  EXPECT_EQ(m.params_version, 1u);
  ASSERT_EQ(m.kernels.size(), 2u);
  const Kernel& k = m.kernels[0];
  EXPECT_EQ(k.id, "cluster_e4m3_e4m3_bf16_r128_plain_sm_120f");
  EXPECT_EQ(k.file, "cubins/cluster_e4m3_e4m3_bf16_r128_plain_sm_120f.cubin");
  EXPECT_EQ(k.size, 115000u);
  EXPECT_EQ(k.sha256, std::string(63, '0') + "1");
  EXPECT_EQ(k.target.sm, 120u);
  EXPECT_EQ(k.target.suffix, "f");
  EXPECT_EQ(k.target.name(), "sm_120f");
  EXPECT_EQ(k.symbol, "mla_cluster_e4m3_e4m3_bf16_r128_plain");
  EXPECT_EQ(k.config.family, cubin::kFamilyCluster);
  EXPECT_EQ(k.config.mma, cubin::kMmaPlain);
  EXPECT_EQ(k.config.q_dtype, cubin::kE4M3);
  EXPECT_EQ(k.config.kv_dtype, cubin::kE4M3);
  EXPECT_EQ(k.config.out_dtype, cubin::kBF16);
  EXPECT_EQ(k.config.rows, 128u);
  EXPECT_EQ(k.config.head_dim_k, 576u);
  EXPECT_EQ(k.config.head_dim_v, 512u);
  EXPECT_EQ(k.config.tile_tokens, 64u);
  EXPECT_EQ(k.config.page_size_min, 16u);
  EXPECT_EQ(k.config.page_size_max, 1024u);
  EXPECT_EQ(k.config.k_box, 64u);
  EXPECT_EQ(k.config.k_swizzle, 0u);
  EXPECT_EQ(k.config.v_box, 128u);
  EXPECT_EQ(k.config.v_swizzle, 128u);
  EXPECT_EQ(k.config.features, cubin::kFeatureLse | cubin::kFeaturePdl | cubin::kFeatureSeparateValues);
  EXPECT_EQ(k.launch.threads, 384u);
  EXPECT_EQ(k.launch.cluster_size, 4u);
  EXPECT_EQ(k.launch.dynamic_smem, 100352u);
  EXPECT_EQ(k.launch.carveout, 100);
  EXPECT_EQ(k.resources.registers, 168u);
  EXPECT_EQ(k.resources.spill_bytes, 0u);
  EXPECT_EQ(k.resources.stack_bytes, 0u);
  EXPECT_EQ(k.resources.static_smem, 0u);
  EXPECT_EQ(k.params.version, 1u);
  EXPECT_EQ(k.params.bytes, 384u);
  EXPECT_EQ(k.min_driver, "580.65.06");
  EXPECT_EQ(k.priority, 0);
  EXPECT_EQ(m.kernels[1].target.name(), "sm_90a");
  EXPECT_EQ(m.kernels[1].resources.spill_bytes, kSpillUnknown);
  EXPECT_EQ(m.kernels[1].resources.stack_bytes, 16u);
}

TEST(Manifest, WritesWhatItRead) {
  const std::string text = read("good_manifest.json");
  Manifest m;
  ASSERT_TRUE(parse(text, "m.json", &m).ok());
  EXPECT_EQ(write(m), text);
}

TEST(Manifest, IgnoresUnknownKeysAndNewerMinor) {
  nlohmann::json json = nlohmann::json::parse(read("good_manifest.json"));
  json["format"]["minor"] = 9;
  json["signature"] = {{"a", 1}};
  json["kernels"][0]["config"]["features"]["sparse"] = "later";
  json["kernels"][1]["notes"] = nullptr;
  Manifest m;
  const Status status = parse(json.dump(), "m.json", &m);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(m.format_minor, 9u);
  EXPECT_EQ(m.kernels.size(), 2u);
}

TEST(Manifest, LeavesOutputAloneOnFailure) {
  Manifest m;
  m.name = "before";
  EXPECT_FALSE(parse("{}", "m.json", &m).ok());
  EXPECT_EQ(m.name, "before");
}

struct Broken {
  std::string name;
  nlohmann::json patch;
  std::string error;
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

std::vector<Broken> corpus() {
  std::vector<Broken> all;
  for (const nlohmann::json& item : nlohmann::json::parse(read("broken_manifests.json"))) {
    all.push_back({item["name"], item["patch"], item["error"]});
  }
  return all;
}

class BrokenManifest : public testing::TestWithParam<Broken> {};

TEST_P(BrokenManifest, IsRefusedWithFilePointerAndReason) {
  const nlohmann::json good = nlohmann::json::parse(read("good_manifest.json"));
  EXPECT_EQ(error_of(good.patch(GetParam().patch).dump()), "m.json: " + GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(Corpus, BrokenManifest, testing::ValuesIn(corpus()),
                         [](const auto& info) { return info.param.name; });

// What a patch of a JSON tree cannot express.
TEST(ManifestText, IsRefusedWhenNotJson) {
  EXPECT_EQ(error_of(""),
            "m.json: line 1, column 1, in (top level): not JSON: syntax error while parsing value - "
            "unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(error_of("{\n  \"format\": {\n    \"name\" 1"),
            "m.json: line 3, column 12, in /format: not JSON: syntax error while parsing object separator - "
            "unexpected number literal; expected ':'");
  EXPECT_EQ(error_of("[]"), "m.json: (top level): got an array; expected an object");
  EXPECT_EQ(error_of("null"), "m.json: (top level): got null; expected an object");
  EXPECT_NE(error_of("{} {}").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": \"\xff\"}").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": NaN}").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 01}").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1,}").find("not JSON"), std::string::npos);
  EXPECT_EQ(error_of(std::string("{\n \"a\": 1}\0{", 12)), "m.json: line 2, column 9: not JSON: a NUL byte");
}

TEST(ManifestText, EveryPrefixIsRefused) {
  const std::string text = read("good_manifest.json");
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    ASSERT_NE(error_of(text.substr(0, size)), "(no error)") << size;
  }
}

TEST(ManifestText, DuplicateKeysAreRefused) {
  std::string text = read("good_manifest.json");
  const std::string field = "\"cluster_size\": 4,";
  text.insert(text.find(field), "\"cluster_size\": 2, ");
  EXPECT_EQ(error_of(text),
            "m.json: /kernels/0/launch: the key \"cluster_size\" stands twice; expected once");
  EXPECT_EQ(error_of(R"({"a": 1, "b": {"x/y~z": [{"c": 1, "\u0063": 2}]}})"),
            "m.json: /b/x~1y~0z/0: the key \"c\" stands twice; expected once");
  // Beyond the count up to which members are compared one by one.
  std::string many = "{";
  for (int i = 0; i < 5000; ++i) many += "\"k" + std::to_string(i) + "\": 0, ";
  EXPECT_EQ(error_of(many + "\"k7\": 1}"), "m.json: (top level): the key \"k7\" stands twice; expected once");
  EXPECT_EQ(error_of(many + "\"k4999\": 1}"),
            "m.json: (top level): the key \"k4999\" stands twice; expected once");
  EXPECT_EQ(error_of(many + "\"z\": 1}"), "m.json: (top level): \"format\" is missing; expected an object");
}

TEST(ManifestText, DeepNestingIsRefused) {
  EXPECT_NE(error_of(std::string(100000, '[')).find("nested deeper than 64 levels"), std::string::npos);
}

TEST(ManifestText, HugeNumbersAreNoIntegers) {
  std::string text = read("good_manifest.json");
  const auto with = [&](const std::string& number) {
    std::string copy = text;
    const std::string field = "\"params_version\": 1";
    return copy.replace(copy.find(field), field.size(), "\"params_version\": " + number);
  };
  EXPECT_EQ(error_of(with("18446744073709551617")),
            "m.json: /params_version: got 1.844674407e+19; expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_of(with("9223372036854775808")),
            "m.json: /params_version: got 9.223372037e+18; expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_of(with("4294967297")),
            "m.json: /params_version: got 4294967297; expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_of(with("1.0")),
            "m.json: /params_version: got 1.0; expected an integer from 1 to 2147483647");
}

TEST(Target, Names) {
  Target target;
  EXPECT_TRUE(parse_target("sm_120f", &target));
  EXPECT_EQ(target.name(), "sm_120f");
  EXPECT_TRUE(parse_target("sm_90", &target));
  EXPECT_EQ(target.sm, 90u);
  EXPECT_EQ(target.suffix, "");
  for (const char* bad :
       {"", "sm_", "sm_9", "sm_90b", "sm_90aa", "sm_012", "compute_90", "SM_90", "sm_1200"}) {
    EXPECT_FALSE(parse_target(bad, &target)) << bad;
  }
}

}  // namespace
}  // namespace mla::manifest

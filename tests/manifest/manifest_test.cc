// SPDX-License-Identifier: Apache-2.0
#include "manifest/manifest.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/common/mla_cubin_info.h"
#include "manifest/fields.h"
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
  ASSERT_EQ(m.kernels.size(), 3u);
  const Kernel& k = m.kernels[0];
  EXPECT_EQ(k.id, "cluster_e4m3_e4m3_bf16_r128_plain_sm_120f");
  EXPECT_EQ(k.file, "cubins/cluster_e4m3_e4m3_bf16_r128_plain_sm_120f.cubin");
  EXPECT_EQ(k.size, 115000u);
  EXPECT_EQ(k.sha256, std::string(63, '0') + "1");
  EXPECT_EQ(k.target.sm, 120u);
  EXPECT_EQ(k.target.suffix, "f");
  EXPECT_EQ(k.target.name(), "sm_120f");
  EXPECT_EQ(k.symbol, "mla_cluster_e4m3_e4m3_bf16_r128_plain");
  const cubin::Facts& f = k.facts;
  EXPECT_EQ(f.kind, kind::kDECODE);
  EXPECT_EQ(f.priority, 0);
  EXPECT_EQ(f.requires_bits, requirement::kROW_TILES | requirement::kPARTIALS);
  EXPECT_EQ(f.family, family::kCLUSTER);
  EXPECT_EQ(f.q_dtype, dtype::kE4M3);
  EXPECT_EQ(f.kv_dtype, dtype::kE4M3);
  EXPECT_EQ(f.partial_dtype, 0u);  // a decode kernel has none
  EXPECT_EQ(f.out_dtype, dtype::kBF16);
  EXPECT_EQ(f.arithmetic, arithmetic::kQUANTISED);
  EXPECT_EQ(f.mma, mma_form::kPLAIN);
  EXPECT_EQ(f.cache_layout, cache_layout::kDENSE);
  EXPECT_EQ(f.rows, 128u);
  EXPECT_EQ(f.head_dim_k, 576u);
  EXPECT_EQ(f.head_dim_v, 512u);
  EXPECT_EQ(f.tile_tokens, 64u);
  EXPECT_EQ(f.page_size_multiple, 16u);
  EXPECT_EQ(f.page_size_max, 1024u);
  EXPECT_EQ(f.features, feature::kLSE | feature::kPDL | feature::kSEPARATE_VALUES);
  EXPECT_EQ(f.tensor_maps, 1u);
  EXPECT_EQ(f.box_tokens, 64u);
  EXPECT_EQ(f.k_box, 64u);
  EXPECT_EQ(f.k_swizzle, 0u);
  EXPECT_EQ(f.v_box, 128u);
  EXPECT_EQ(f.v_swizzle, 128u);
  EXPECT_EQ(f.threads, 384u);
  EXPECT_EQ(f.cluster_size, 4u);
  EXPECT_EQ(f.dynamic_smem, 100352u);
  EXPECT_EQ(f.carveout, 100);
  EXPECT_EQ(f.item_overhead, 4u);
  EXPECT_EQ(f.min_share, 2u);
  EXPECT_EQ(f.max_flat_merge, 8u);
  EXPECT_EQ(f.zeroed_bytes, 65536u);
  EXPECT_EQ(f.fixed_bytes, 1024u);
  EXPECT_EQ(f.bytes_per_worker, 527360u);
  EXPECT_EQ(f.max_workers, 256u);
  EXPECT_EQ(f.tile_cost, 4280u);
  EXPECT_EQ(f.params_struct, params_struct::kDECODE);
  EXPECT_EQ(f.params_version, 1u);
  EXPECT_EQ(f.params_bytes, 640u);
  EXPECT_EQ(k.resources.registers, 168u);
  EXPECT_EQ(k.resources.spill_bytes, 0u);
  EXPECT_EQ(k.resources.stack_bytes, 0u);
  EXPECT_EQ(k.resources.static_smem, 0u);
  EXPECT_EQ(k.min_driver, "580.65.06");
  EXPECT_EQ(k.unknown, "");
  EXPECT_EQ(m.kernels[1].target.name(), "sm_90a");
  EXPECT_EQ(m.kernels[1].facts.priority, -5);
  EXPECT_EQ(m.kernels[1].resources.spill_bytes, kSpillUnknown);
  EXPECT_EQ(m.kernels[1].resources.stack_bytes, 16u);
  const Kernel& merge = m.kernels[2];
  EXPECT_EQ(merge.facts.kind, kind::kMERGE);
  EXPECT_EQ(merge.facts.requires_bits, 0u);
  EXPECT_EQ(merge.facts.partial_dtype, dtype::kF32);
  EXPECT_EQ(merge.facts.kv_dtype, 0u);
  EXPECT_EQ(merge.facts.carveout, -1);
  EXPECT_EQ(merge.facts.params_struct, params_struct::kMERGE);
  EXPECT_EQ(merge.unknown, "");
}

// Every field of the table is read, must be there, has its type and its range, and is written.
TEST(Manifest, FollowsTheFieldTable) {
  const nlohmann::json good = nlohmann::json::parse(read("good_manifest.json"));
  for (const auto& [index, kind] : {std::pair(0, kind::kDECODE), std::pair(2, kind::kMERGE)}) {
    const std::string kernel = "/kernels/" + std::to_string(index);
    for (const Field& field : cubin::kFields) {
      SCOPED_TRACE(kernel + " " + field.name);
      const std::string where = kernel + json_pointer(field);
      const nlohmann::json::json_pointer pointer(where);
      if (!applies(field, kind)) {
        EXPECT_FALSE(good.contains(pointer));
        continue;
      }
      const auto error_with = [&](const nlohmann::json& value) {
        nlohmann::json changed = good;
        changed[pointer] = value;
        return error_of(changed.dump());
      };
      const std::string key(json_key(field));
      const std::string parent = where.substr(0, where.size() - key.size() - 1);
      nlohmann::json without = good;
      without[nlohmann::json::json_pointer(parent)].erase(key);
      if (is_bits(field.type)) {
        EXPECT_EQ(error_of(without.dump()), "(no error)");
        EXPECT_EQ(error_with(0), "m.json: " + where + ": got 0; expected " +
                                     (field.type == FieldType::feature ? "an object" : "an array"));
        continue;
      }
      EXPECT_EQ(error_of(without.dump()),
                "m.json: " + parent + ": \"" + key + "\" is missing; expected " +
                    (field.type == FieldType::swizzle ? "an integer from 0 to 128" : expected(field)));
      EXPECT_NE(error_with(nlohmann::json::array()), "(no error)");
      if (field.type != FieldType::number && field.type != FieldType::integer) continue;
      const std::string range =
          "; expected an integer from " + std::to_string(field.low) + " to " + std::to_string(field.high);
      for (const int64_t value : {field.low - 1, field.high + 1}) {
        EXPECT_EQ(error_with(value), "m.json: " + where + ": got " + std::to_string(value) + range);
      }
      EXPECT_EQ(error_with("7"), "m.json: " + where + ": got \"7\"" + range);
      EXPECT_EQ(error_with(1.5), "m.json: " + where + ": got 1.5" + range);
    }
  }
}

TEST(Fields, HaveKeysAndSpelling) {
  const auto field = [](const char* name) -> const Field& { return *find_field(name); };
  EXPECT_EQ(json_pointer(field("kind")), "/kind");
  EXPECT_EQ(json_pointer(field("requires_bits")), "/requires");
  EXPECT_EQ(json_pointer(field("rows")), "/config/rows");
  EXPECT_EQ(json_pointer(field("params_struct")), "/params/struct");
  EXPECT_EQ(json_pointer(field("params_bytes")), "/params/bytes");
  EXPECT_EQ(json_pointer(field("cluster_size")), "/launch/cluster_size");
  EXPECT_EQ(find_field("colour"), nullptr);
  EXPECT_EQ(spell(field("rows"), 64), "64");
  EXPECT_EQ(spell(field("carveout"), -1), "-1");
  EXPECT_EQ(spell(field("kv_dtype"), dtype::kE4M3), "e4m3");
  EXPECT_EQ(spell(field("kv_dtype"), 9), "9");
  EXPECT_EQ(spell(field("tensor_maps"), 1), "true");
  EXPECT_EQ(spell(field("features"), feature::kLSE | feature::kPDL), "lse, pdl");
  EXPECT_EQ(spell(field("features"), 0), "none");
  EXPECT_EQ(spell(field("features"), feature::kLSE | 1u << 31), "lse, bits 2147483648");
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
  json["kernels"][0]["config"]["partial_dtype"] = 7;  // no field of a decode kernel
  json["kernels"][0]["config"]["features"]["paged_queries"] = false;
  json["kernels"][1]["notes"] = nullptr;
  Manifest m;
  const Status status = parse(json.dump(), "m.json", &m);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(m.format_minor, 9u);
  EXPECT_EQ(m.kernels.size(), 3u);
  EXPECT_EQ(m.kernels[0].unknown, "");
}

// What a later release may write makes one kernel unusable, with its reason, and not the bundle.
TEST(Manifest, WhatIsNotKnownIsOneKernelsMatter) {
  const nlohmann::json good = nlohmann::json::parse(read("good_manifest.json"));
  const auto reason = [&](const char* patch) {
    Manifest m;
    const Status status = parse(good.patch(nlohmann::json::parse(patch)).dump(), "m.json", &m);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return std::string();
    EXPECT_EQ(m.kernels[1].unknown, "");
    EXPECT_EQ(m.kernels[2].unknown, "");
    return m.kernels[0].unknown;
  };
  // Nothing is asked of a kernel of another kind but what every entry has.
  EXPECT_EQ(reason(R"([{"op": "replace", "path": "/kernels/0/kind", "value": "append"},
                       {"op": "remove", "path": "/kernels/0/config"},
                       {"op": "replace", "path": "/kernels/0/launch", "value": 7},
                       {"op": "remove", "path": "/kernels/0/params"}])"),
            "its kind is \"append\", which this program does not know");
  EXPECT_EQ(reason(R"([{"op": "add", "path": "/kernels/0/requires/-", "value": "fp4_rows"},
                       {"op": "replace", "path": "/kernels/0/config/rows", "value": "many"}])"),
            "it requires \"fp4_rows\", which this program does not know");
  EXPECT_EQ(reason(R"([{"op": "replace", "path": "/kernels/0/config/family", "value": "tree"},
                       {"op": "replace", "path": "/kernels/0/config/kv_dtype", "value": "e2m1"}])"),
            "its family is \"tree\", its kv_dtype is \"e2m1\", which this program does not know");
  EXPECT_EQ(reason(R"([{"op": "replace", "path": "/kernels/0/params/struct", "value": "decode_paged"}])"),
            "its params_struct is \"decode_paged\", which this program does not know");
  EXPECT_EQ(reason(R"([{"op": "replace", "path": "/kernels/0/target/suffix", "value": "x"}])"),
            "its target suffix is \"x\", which this program does not know");
  EXPECT_EQ(reason(R"([{"op": "add", "path": "/kernels/0/config/features/telepathy", "value": true}])"),
            "it has the feature \"telepathy\", which this program does not know");
  // Whether version 7 can be filled is the loader's matter.
  EXPECT_EQ(reason(R"([{"op": "replace", "path": "/kernels/0/params/version", "value": 7}])"), "");
  // What is known must be right even so.
  nlohmann::json json = good;
  json["kernels"][0]["config"]["family"] = "tree";
  json["kernels"][0]["config"]["rows"] = 0;
  EXPECT_EQ(error_of(json.dump()),
            "m.json: /kernels/0/config/rows: got 0; expected an integer from 1 to 1024");
}

TEST(Manifest, AnUnknownReasonStaysShort) {
  nlohmann::json json = nlohmann::json::parse(read("good_manifest.json"));
  json["kernels"][0]["requires"] = nlohmann::json::array();
  for (int i = 0; i < 100000; ++i) json["kernels"][0]["requires"].push_back("word" + std::to_string(i));
  Manifest m;
  ASSERT_TRUE(parse(json.dump(), "m.json", &m).ok());
  EXPECT_EQ(m.kernels[0].unknown,
            "it requires \"word0\", it requires \"word1\", it requires \"word2\", it requires \"word3\" and "
            "99996 more, which this program does not know");
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
    const std::string field = "\"version\": 1";
    return copy.replace(copy.find(field), field.size(), "\"version\": " + number);
  };
  EXPECT_EQ(
      error_of(with("18446744073709551617")),
      "m.json: /kernels/0/params/version: got 1.844674407e+19; expected an integer from 1 to 2147483647");
  EXPECT_EQ(
      error_of(with("9223372036854775808")),
      "m.json: /kernels/0/params/version: got 9.223372037e+18; expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_of(with("4294967297")),
            "m.json: /kernels/0/params/version: got 4294967297; expected an integer from 1 to 2147483647");
  EXPECT_EQ(error_of(with("1.0")),
            "m.json: /kernels/0/params/version: got 1.0; expected an integer from 1 to 2147483647");
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

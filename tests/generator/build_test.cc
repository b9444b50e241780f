// SPDX-License-Identifier: Apache-2.0
//
// `mla-gen` as people run it, over a small matrix of fixture kernels and the real nvcc.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "generator/process.h"
#include "manifest/cubin.h"
#include "manifest/manifest.h"
#include "manifest/sha256.h"
#include "tests/manifest/elf_builder.h"
#include "tests/manifest/guarded_copy.h"

namespace mla::generator {
namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void spill(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

size_t count(const std::string& text, const std::string& what) {
  size_t hits = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++hits;
  return hits;
}

// Path and content of every file below a folder.
std::map<std::string, std::string> tree(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(dir).string()] = slurp(entry.path());
  }
  return files;
}

constexpr char kMatrix[] = R"({
  "format": {"name": "mla-matrix", "major": 1},
  "bundle": {"name": "fixture", "version": "1.2.3"},
  "targets": {"sm_120f": "one", "sm_90a": "two"},
  "families": [{
    "name": "cluster", "source": "kernels/fixture/fixture.cu", "carveout": 75, "flags": ["-O3"],
    "axes": [
      {"name": "rows", "constant": "rows", "macro": "MLA_ROWS", "why": "w",
       "values": [{"id": "r32", "is": 32, "define": "32"}, {"id": "r64", "is": 64, "define": "64"}]}
    ],
    "rules": [{"when": {"target": ["sm_90a"]}, "require": {"rows": ["r64"]}, "why": "no use for it"}],
    "priorities": [{"when": {"rows": ["r32"]}, "priority": -5, "why": "w"}],
    "limits": [{"max": {"registers": 168, "spill_bytes": 0, "static_smem": 400, "dynamic_smem": 4096}, "why": "w"}]
  }]
})";

struct Result {
  int code = -1;
  std::string output;
};

class Build : public testing::Test {
 protected:
  void SetUp() override {
    int code = 1;
    std::string output;
    if (!run_process({"nvcc", "--version"}, "", &output, &code).ok() || code != 0) {
      GTEST_SKIP() << "no nvcc in PATH: nothing was compiled";
    }
    std::string pattern = (fs::temp_directory_path() / "mla_build_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    make_source(root_ / "src");
  }
  void TearDown() override {
    std::error_code ignored;
    if (!root_.empty()) fs::remove_all(root_, ignored);
  }

  static void make_source(const fs::path& at) {
    const fs::path project = MLA_SOURCE_DIR;
    fs::create_directories(at / "kernels");
    fs::copy(project / "kernels/common", at / "kernels/common");
    fs::copy(project / "tests/generator/fixture", at / "kernels/fixture");
    spill(at / "matrix.json", kMatrix);
  }

  static Result run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), MLA_GEN);
    Result result;
    const Status status = run_process(arguments, "", &result.output, &result.code);
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }

  // Builds src into bundle, with more arguments.
  Result build(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"build",       "--matrix", root_ / "src/matrix.json", "--source",
                                          root_ / "src", "--out",    root_ / "bundle"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  manifest::Manifest manifest() {
    manifest::Manifest m;
    const Status status = manifest::parse(slurp(root_ / "bundle/manifest.json"), "manifest.json", &m);
    EXPECT_TRUE(status.ok()) << status.message();
    return m;
  }

  void edit(const std::string& file, const std::string& from, const std::string& to) {
    const fs::path path = root_ / "src" / file;
    spill(path, replaced(slurp(path), from, to));
  }

  fs::path root_;
};

TEST_F(Build, GivesAVerifiedBundle) {
  const Result built = build({"--ptx-out", root_ / "ptx", "--jobs", "2"});
  ASSERT_EQ(built.code, 0) << built.output;
  EXPECT_NE(
      built.output.find("refused cluster_r32_sm_90a: no use for it (target = sm_90a requires rows = r64)"),
      std::string::npos)
      << built.output;

  const manifest::Manifest m = manifest();
  EXPECT_EQ(m.name, "fixture");
  EXPECT_EQ(m.version, "1.2.3");
  ASSERT_EQ(m.kernels.size(), 3u);
  EXPECT_EQ(m.kernels[0].id, "cluster_r32_sm_120f");
  EXPECT_EQ(m.kernels[1].id, "cluster_r64_sm_120f");
  EXPECT_EQ(m.kernels[2].id, "cluster_r64_sm_90a");
  EXPECT_EQ(m.kernels[0].symbol, "mla_cluster_r32");
  EXPECT_EQ(m.kernels[0].facts.rows, 32u);
  EXPECT_EQ(m.kernels[1].facts.rows, 64u);
  EXPECT_EQ(m.kernels[0].facts.priority, -5);
  EXPECT_EQ(m.kernels[1].facts.priority, 0);
  for (const manifest::Kernel& kernel : m.kernels) {
    EXPECT_EQ(kernel.facts.threads, 64u);
    EXPECT_EQ(kernel.facts.cluster_size, 2u);
    EXPECT_EQ(kernel.facts.dynamic_smem, 4096u);
    EXPECT_EQ(kernel.facts.carveout, 75);
    EXPECT_EQ(kernel.resources.static_smem, 400u);
    EXPECT_EQ(kernel.resources.spill_bytes, 0u);
    EXPECT_GT(kernel.resources.registers, 0u);
    EXPECT_EQ(kernel.facts.params_bytes, 640u);
    // The PTX that the cubin was made from lies beside the bundle, under the cubin's digest.
    const std::string ptx = slurp(root_ / "ptx" / (kernel.sha256 + ".ptx"));
    EXPECT_NE(ptx.find(".target " + kernel.target.name()), std::string::npos) << kernel.id;
    EXPECT_NE(ptx.find(".entry " + kernel.symbol + "("), std::string::npos) << kernel.id;
    EXPECT_EQ(ptx.find(".loc"), std::string::npos) << kernel.id;
  }
  EXPECT_EQ(tree(root_ / "ptx").size(), 3u);
  for (const auto& [path, content] : tree(root_ / "bundle")) {
    EXPECT_TRUE(path == "manifest.json" || path.ends_with(".cubin")) << path;
  }

  const Result verified = run({"verify", root_ / "bundle"});
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_NE(verified.output.find("3 kernels, nothing wrong"), std::string::npos) << verified.output;

  // An independent validator agrees about the manifest.
  Result schema;
  ASSERT_TRUE(run_process({MLA_SCHEMA_PYTHON, MLA_SOURCE_DIR "/tests/manifest/schema_test.py",
                           MLA_SOURCE_DIR "/manifest/manifest.schema.json", "manifest",
                           root_ / "bundle/manifest.json"},
                          "", &schema.output, &schema.code)
                  .ok());
  EXPECT_EQ(schema.code, 0) << schema.output;

  // The manifest rebuilt from the cubins is the same one, byte for byte.
  const Result indexed = run({"index", root_ / "bundle", "--out", "-"});
  EXPECT_EQ(indexed.code, 0) << indexed.output;
  EXPECT_EQ(indexed.output, slurp(root_ / "bundle/manifest.json"));
  const Result fresh = run({"index", root_ / "bundle", "--fresh", "--name", "fixture", "--version", "1.2.3",
                            "--source-hash", m.source_hash, "--out", "-"});
  EXPECT_EQ(fresh.output, indexed.output);

  const Result shown = run({"show", root_ / "bundle"});
  EXPECT_EQ(shown.code, 0);
  for (const char* word :
       {"fixture 1.2.3, toolkit ", "cluster_r32_sm_120f", "cluster_r64_sm_90a", "registers"}) {
    EXPECT_NE(shown.output.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(run({"show", root_ / "bundle", "--json"}).output, indexed.output);
  const Result lines = run({"show", root_ / "bundle", "cluster_r64_sm_90a"});
  EXPECT_NE(
      lines.output.find("config.rows                64                       row tile: (query token, head)"),
      std::string::npos)
      << lines.output;
  const Result one = run({"show", root_ / "bundle", "cluster_r64_sm_90a", "--json"});
  EXPECT_EQ(nlohmann::json::parse(one.output)["target"]["sm"], 90);
  const Result none = run({"show", root_ / "bundle", "x"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.output.find("has no kernel \"x\""), std::string::npos) << none.output;
}

TEST_F(Build, NeedsNoToolThatReadsCubins) {
  // Programs of these names that leave a mark come first in PATH.
  for (const char* tool : {"cuobjdump", "nvdisasm", "readelf", "objdump", "nvprune"}) {
    const fs::path path = root_ / "tools" / tool;
    spill(path, "#!/bin/sh\ntouch '" + (root_ / "called").string() + "'\n");
    chmod(path.c_str(), 0755);
  }
  const std::string old = getenv("PATH");
  setenv("PATH", ((root_ / "tools").string() + ":" + old).c_str(), 1);
  const Result built = build({"--filter", "r32"});
  const Result verified = run({"verify", root_ / "bundle"});
  setenv("PATH", old.c_str(), 1);
  EXPECT_EQ(built.code, 0) << built.output;
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_FALSE(fs::exists(root_ / "called"));
}

TEST_F(Build, SameBytesInEveryFolder) {
  ASSERT_EQ(build().code, 0);
  const fs::path other = root_ / "deep er" / "a+b";
  make_source(other / "source");
  const Result built = run({"build", "--matrix", other / "source/matrix.json", "--source", other / "source",
                            "--out", other / "out/bundle", "--build-dir", other / "build dir"});
  ASSERT_EQ(built.code, 0) << built.output;
  EXPECT_EQ(tree(root_ / "bundle"), tree(other / "out/bundle"));
  EXPECT_EQ(run({"diff", root_ / "bundle", other / "out/bundle"}).code, 0);
  // The rebuild notices an edit there too: the depfile survived the blanks in its path.
  const fs::path part = other / "source/kernels/fixture/part.cuh";
  spill(part, replaced(slurp(part), "1.0f", "3.0f"));
  const Result again =
      run({"build", "--matrix", other / "source/matrix.json", "--source", other / "source", "--out",
           other / "out/bundle", "--build-dir", other / "build dir", "--filter", "r32"});
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(count(again.output, "] ptx "), 1u) << again.output;
}

TEST_F(Build, RebuildsWhatItMustAndNothingElse) {
  // A second family whose source does not include part.cuh.
  nlohmann::json matrix = nlohmann::json::parse(kMatrix);
  matrix["families"].push_back(matrix["families"][0]);
  nlohmann::json& second = matrix["families"][1];
  second["source"] = "kernels/fixture/second.cu";
  second["axes"][0]["values"] = {{{"id", "second"}, {"is", 16}, {"define", "16"}}};
  second.erase("rules");
  second.erase("priorities");
  matrix["targets"].erase("sm_90a");
  matrix["families"][0].erase("rules");
  spill(root_ / "src/matrix.json", matrix.dump());
  const std::string source = slurp(root_ / "src/kernels/fixture/fixture.cu");
  spill(root_ / "src/kernels/fixture/second.cu",
        replaced(replaced(source, "#include \"kernels/fixture/part.cuh\"\n", ""), " + part(x)", ""));

  const Result first = build();
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(count(first.output, "] ptx "), 3u) << first.output;
  EXPECT_EQ(count(first.output, "] cubin "), 3u) << first.output;
  const auto before = tree(root_ / "bundle");

  // The best of three: other work on the machine is not what is measured.
  double seconds = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const Result nothing = build();
    seconds =
        std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    ASSERT_EQ(nothing.code, 0) << nothing.output;
    EXPECT_NE(nothing.output.find("no work to do"), std::string::npos) << nothing.output;
    EXPECT_NE(nothing.output.find(", unchanged"), std::string::npos) << nothing.output;
  }
  EXPECT_LT(seconds, 1.0);

  edit("kernels/fixture/part.cuh", "1.0f", "2.0f");
  const Result touched = build();
  ASSERT_EQ(touched.code, 0) << touched.output;
  EXPECT_EQ(count(touched.output, "] ptx "), 2u) << touched.output;
  EXPECT_EQ(count(touched.output, "cluster_second"), 0u) << touched.output;
  const auto after = tree(root_ / "bundle");
  EXPECT_NE(before.at("cubins/cluster_r32_sm_120f.cubin"), after.at("cubins/cluster_r32_sm_120f.cubin"));
  EXPECT_EQ(before.at("cubins/cluster_second_sm_120f.cubin"),
            after.at("cubins/cluster_second_sm_120f.cubin"));

  // A comment changes the sources and their hash, not the code: the assembler does not run again.
  const std::string hash = manifest().source_hash;
  edit("kernels/fixture/part.cuh", "#pragma once", "#pragma once  // remark");
  const Result remark = build();
  ASSERT_EQ(remark.code, 0) << remark.output;
  EXPECT_EQ(count(remark.output, "] cubin "), 0u) << remark.output;
  EXPECT_NE(manifest().source_hash, hash);

  // A kernel that is gone from the matrix is gone from the bundle.
  const Result filtered = build({"--filter", "second"});
  ASSERT_EQ(filtered.code, 0) << filtered.output;
  EXPECT_EQ(manifest().kernels.size(), 1u);
  EXPECT_EQ(tree(root_ / "bundle").size(), 2u);
  EXPECT_EQ(run({"verify", root_ / "bundle"}).code, 0);
}

TEST_F(Build, AFailedCompilationLeavesTheBundleAlone) {
  ASSERT_EQ(build({"--arch", "sm_120f"}).code, 0);
  const auto before = tree(root_ / "bundle");
  edit("kernels/fixture/fixture.cu", "constexpr uint32_t kRows = MLA_ROWS;",
       "constexpr uint32_t kRows = MLA_ROWS;\nstatic_assert(kRows != 64, \"sixty-four rows do not work\");");
  const Result failed = build({"--arch", "sm_120f"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_NE(failed.output.find("mla-gen: error: cluster_r64_sm_120f: compilation failed:"), std::string::npos)
      << failed.output;
  EXPECT_NE(failed.output.find("kernels/fixture/fixture.cu("), std::string::npos) << failed.output;
  EXPECT_NE(failed.output.find("sixty-four rows do not work"), std::string::npos) << failed.output;
  EXPECT_EQ(failed.output.find("error: cluster_r32_sm_120f"), std::string::npos) << failed.output;
  EXPECT_NE(failed.output.find("1 of 2 configurations did not compile (ninja ended with 1); " +
                               (root_ / "bundle").string() + " is as it was before"),
            std::string::npos)
      << failed.output;
  EXPECT_EQ(tree(root_ / "bundle"), before);
  // Nor is there a bundle where there was none.
  const Result none =
      run({"build", "--matrix", root_ / "src/matrix.json", "--source", root_ / "src", "--arch", "sm_120f",
           "--out", root_ / "new", "--build-dir", root_ / "bundle.build"});
  EXPECT_EQ(none.code, 1);
  EXPECT_FALSE(fs::exists(root_ / "new"));
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << "left behind: " << entry.path();
  }
}

TEST_F(Build, AWarningIsAFailure) {
  edit("kernels/fixture/part.cuh", "return x + 1.0f;", "int unused; return x + 1.0f;");
  const Result failed = build({"--filter", "r32"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_NE(failed.output.find("\"unused\" was declared but never referenced"), std::string::npos)
      << failed.output;
}

TEST_F(Build, ACubinThatIsNotWhatWasAskedForIsRefused) {
  // The source does not look at MLA_ROWS: both configurations would be the same code.
  edit("kernels/fixture/fixture.cu", "kRows = MLA_ROWS", "kRows = 32");
  const Result ignored = build({"--arch", "sm_120f"});
  EXPECT_EQ(ignored.code, 1);
  EXPECT_NE(
      ignored.output.find("mla-gen: error: cluster_r64_sm_120f: mla_rows: the cubin says 32; asked for 64"),
      std::string::npos)
      << ignored.output;
  EXPECT_NE(
      ignored.output.find("cluster_r64_sm_120f: the same machine code as cluster_r32_sm_120f: an axis of "
                          "the matrix has no effect"),
      std::string::npos)
      << ignored.output;
  EXPECT_NE(ignored.output.find("1 of 2 cubins are not what was asked for"), std::string::npos)
      << ignored.output;
  EXPECT_FALSE(fs::exists(root_ / "bundle"));

  edit("kernels/fixture/fixture.cu", ".threads = 64", ".threads = 128");
  const Result threads = build({"--filter", "r32"});
  EXPECT_EQ(threads.code, 1);
  EXPECT_NE(threads.output.find("mla_threads is 128, the kernel is compiled for blocks of 64 threads"),
            std::string::npos)
      << threads.output;

  edit("kernels/fixture/fixture.cu", "MLA_KERNEL_SYMBOL(const", "mla_other(const");
  edit("kernels/fixture/fixture.cu", ".threads = 128", ".threads = 64");
  const Result symbol = build({"--filter", "r32"});
  EXPECT_EQ(symbol.code, 1);
  EXPECT_NE(symbol.output.find("ptxas reported no registers and spills of mla_cluster_r32"),
            std::string::npos)
      << symbol.output;
  EXPECT_FALSE(fs::exists(root_ / "bundle"));
}

// A kernel cannot forget a fact, give one that its kind does not have, or invent one.
TEST_F(Build, FactsAreCheckedWhereTheyAreWritten) {
  const std::string good = slurp(root_ / "src/kernels/fixture/fixture.cu");
  const auto error = [&](const std::string& from, const std::string& to) {
    spill(root_ / "src/kernels/fixture/fixture.cu", replaced(good, from, to));
    const Result failed = build({"--filter", "r32"});
    EXPECT_EQ(failed.code, 1) << failed.output;
    return failed.output;
  };
  const auto expect = [](const std::string& output, const std::string& message) {
    EXPECT_NE(output.find(message), std::string::npos) << output;
  };
  expect(error("    .tile_cost = 1000,\n", ""), "\"kFacts.tile_cost is missing or out of range\"");
  const std::string rows = error(".rows = kRows", ".rows = 1025");
  expect(rows, "\"kFacts.rows is missing or out of range\"");
  for (size_t at = 0; at < rows.size(); at = rows.find('\n', at) + 1) {
    // The compiler quotes the line that the macros became.
    EXPECT_LT(rows.find('\n', at) - at, 2000u) << rows;
  }
  expect(error(".k_swizzle = 64", ".k_swizzle = 48"), "\"kFacts.k_swizzle is missing or out of range\"");
  expect(error(".max_workers = 256", ".max_workers = -1"), "integer conversion resulted in a change of sign");
  expect(error("MLA_EMIT_DECODE_FACTS;", "MLA_EMIT_MERGE_FACTS;"),
         "\"kFacts is not that of a merge kernel\"");
  expect(error("MLA_EMIT_DECODE_FACTS;", "MLA_EMIT_DECODE_FACTS;\nMLA_EMIT_CUBIN_INFO(colour, 1);"),
         "class \"mla::cubin::EmittedFacts\" has no member \"colour\"");
  expect(error("MLA_EMIT_DECODE_FACTS;", "MLA_EMIT_DECODE_FACTS;\nMLA_EMIT_CUBIN_INFO(partial_dtype, 1);"),
         "has the constant mla_partial_dtype; a decode kernel has none");
}

TEST_F(Build, LimitsAreEnforced) {
  nlohmann::json matrix = nlohmann::json::parse(kMatrix);
  matrix["families"][0]["limits"][0]["max"] = {
      {"dynamic_smem", 4095}, {"static_smem", 399}, {"registers", 2}};
  spill(root_ / "src/matrix.json", matrix.dump());
  const Result built = build({"--filter", "r32"});
  EXPECT_EQ(built.code, 1);
  EXPECT_NE(built.output.find("cluster_r32_sm_120f: dynamic_smem: 4096 is more than the limit of 4095"),
            std::string::npos)
      << built.output;
  EXPECT_NE(built.output.find("cluster_r32_sm_120f: static_smem: 400 is more than the limit of 399"),
            std::string::npos)
      << built.output;
  EXPECT_NE(built.output.find(" is more than the limit of 2\n"), std::string::npos) << built.output;
  EXPECT_FALSE(fs::exists(root_ / "bundle"));
}

TEST_F(Build, SpillsAreReadFromTheAssembler) {
  // At most 42 registers for a kernel that needs more.
  nlohmann::json matrix = nlohmann::json::parse(kMatrix);
  edit("kernels/fixture/fixture.cu", "    atomicAdd(&calls, 1);",
       "    float sums[90];\n"
       "    for (int i = 0; i < 90; ++i) sums[i] = static_cast<volatile float*>(values)[(i * 7 + "
       "threadIdx.x) % 64];\n"
       "    __syncthreads();\n"
       "    for (int i = 0; i < 90; ++i) reinterpret_cast<float*>(params.out)[i * 64] = sums[89 - i] * "
       "sums[i];\n");
  edit("kernels/fixture/fixture.cu", "__launch_bounds__(64, 1)", "__launch_bounds__(64, 24)");
  const Result refused = build({"--filter", "r32"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("cluster_r32_sm_120f: spill_bytes: "), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find(" is more than the limit of 0"), std::string::npos) << refused.output;

  matrix["families"][0]["limits"].push_back(
      {{"when", {{"target", {"sm_120f"}}}}, {"max", {{"spill_bytes", 4096}}}, {"why", "w"}});
  spill(root_ / "src/matrix.json", matrix.dump());
  const Result allowed = build({"--filter", "r32"});
  ASSERT_EQ(allowed.code, 0) << allowed.output;
  EXPECT_GT(manifest().kernels.at(0).resources.spill_bytes, 0u);
  EXPECT_GT(manifest().kernels.at(0).resources.stack_bytes, 0u);
  EXPECT_LE(manifest().kernels.at(0).resources.registers, 42u);
}

TEST_F(Build, OptionsAreChecked) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const Result result = build(arguments);
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
    EXPECT_FALSE(fs::exists(root_ / "bundle"));
  };
  refused({"--arch", "sm_90a,sm_121a"},
          "--arch: no target \"sm_121a\" in the matrix; it has sm_120f, sm_90a");
  refused({"--filter", "nothing"}, "no configuration is left to build");
  refused({"--nvcc", root_ / "none"},
          "none: cannot be run: No such file or directory; install the CUDA toolkit or give --nvcc");
  refused({"--ninja", root_ / "none"}, "install ninja-build or give --ninja");
  refused({"--jobs", "0"}, "--jobs");
  refused({"--colour"}, "--colour");
  fs::remove(root_ / "src/kernels/fixture/fixture.cu");
  refused({}, "src/kernels/fixture/fixture.cu: there is no such file; the matrix names it as a source");
  spill(root_ / "src/matrix.json", replaced(kMatrix, "\"axes\"", "\"axis\""));
  refused({}, "matrix.json: /families/0: unknown key \"axis\"");
  EXPECT_EQ(run({}).code, 2);
  const Result help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"build", "list", "show", "verify", "diff", "index", "Exit status", "Examples"}) {
    EXPECT_NE(help.output.find(word), std::string::npos) << word;
  }
}

// Everything about folders is known before the first compilation.
TEST_F(Build, BadFoldersAreRefusedBeforeAnythingIsCompiled) {
  const fs::path nvcc = root_ / "nvcc";
  spill(nvcc, "#!/bin/sh\ntouch '" + (root_ / "called").string() + "'\nexec nvcc \"$@\"\n");
  chmod(nvcc.c_str(), 0755);
  const auto refused = [&](const std::string& out, const std::vector<std::string>& more,
                           const std::string& message) {
    std::vector<std::string> arguments = {"build",    "--matrix",    root_ / "src/matrix.json",
                                          "--source", root_ / "src", "--nvcc",
                                          nvcc,       "--out",       out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_EQ(result.output, "mla-gen: error: " + message + "\n");
    EXPECT_FALSE(fs::exists(root_ / "called")) << "compiled before it was refused";
  };
  const std::string home = root_ / "home";
  spill(home + "/manifest.json", "{}");
  spill(home + "/cubins/mine", "mine");
  refused(home, {},
          "--out " + home +
              ": manifest.json: (top level): \"format\" is missing; expected an object; only a bundle is "
              "replaced");
  EXPECT_EQ(slurp(home + "/cubins/mine"), "mine");
  refused("", {}, "--out \"\" is empty; expected the path of a folder or of nothing");
  refused("/", {}, "--out /: is the root folder; expected a folder that may be replaced");
  refused(".", {}, "--out .: is or holds the current folder; expected a folder that may be replaced");
  refused("/dev/null", {}, "--out /dev/null: is no folder; expected a folder or nothing");
  fs::create_symlink(root_ / "nowhere", root_ / "dangling");
  refused(root_ / "dangling", {},
          "--out " + (root_ / "dangling").string() +
              ": is a link that leads nowhere; expected a folder or nothing");
  for (const char* name : {"a|b", "a\nb", "a'b", "a$b",
                           "a\x7f"
                           "b"}) {
    const std::string out = root_ / name;
    std::string shown = out + ".build";
    if (name[1] == '\x7f') shown.replace(shown.find('\x7f'), 1, "\\u007f");
    refused(out, {},
            "--out: the folder of intermediate files " + shown +
                ": has a character that nvcc or Ninja cannot handle in a path");
  }
  const std::string out = root_ / "bundle";
  refused(out, {"--build-dir", out + "/build"},
          "--build-dir " + out + "/build: lies in --out, which is replaced");
  refused(out, {"--ptx-out", out + "/ptx"}, "--ptx-out " + out + "/ptx: lies in --out, which is replaced");
  spill(root_ / "file", "mine");
  refused(out, {"--ptx-out", root_ / "file"},
          "--ptx-out " + (root_ / "file").string() + ": is no folder; expected a folder or nothing");
  spill(root_ / "project/build.ninja", "rule mine\n");
  refused(out, {"--build-dir", root_ / "project"},
          "--build-dir " + (root_ / "project").string() +
              ": has a build.ninja that mla-gen did not write; expected a folder of its own");
  EXPECT_EQ(slurp(root_ / "project/build.ninja"), "rule mine\n");
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Build, PathsMayHaveOddCharacters) {
  const fs::path odd = root_ / "a b+c,d=e%f#g@h(i)[j]{k};l&m*n?o~p!q^\xc3\xb6";
  const Result built = run({"build", "--matrix", root_ / "src/matrix.json", "--source", root_ / "src",
                            "--filter", "r32", "--out", odd / "bundle"});
  ASSERT_EQ(built.code, 0) << built.output;
  EXPECT_EQ(run({"verify", odd / "bundle"}).code, 0);
  spill(root_ / "src/kernels/fixture/part.cuh", slurp(root_ / "src/kernels/fixture/part.cuh") + "// more\n");
  const Result again = run({"build", "--matrix", root_ / "src/matrix.json", "--source", root_ / "src",
                            "--filter", "r32", "--out", odd / "bundle"});
  EXPECT_EQ(count(again.output, "] ptx "), 1u) << again.output;
}

TEST_F(Build, DamagedIntermediatesAreMadeAgain) {
  ASSERT_EQ(build({"--filter", "r32"}).code, 0);
  const auto before = tree(root_ / "bundle");
  const fs::path ptx = root_ / "bundle.build/ptx/cluster_r32_sm_120f.ptx";
  const fs::path cubin = root_ / "bundle.build/cubins/cluster_r32_sm_120f.cubin";
  const auto rebuilds = [&](const std::string& what, size_t ptx_steps) {
    const Result again = build({"--filter", "r32"});
    EXPECT_EQ(again.code, 0) << what << "\n" << again.output;
    EXPECT_EQ(count(again.output, "] ptx "), ptx_steps) << what << "\n" << again.output;
    EXPECT_EQ(tree(root_ / "bundle"), before) << what;
    EXPECT_NE(build({"--filter", "r32"}).output.find("no work to do"), std::string::npos) << what;
  };
  fs::resize_file(cubin, fs::file_size(cubin) / 2);
  rebuilds("truncated cubin", 0);
  spill(cubin, std::string(fs::file_size(cubin), 'x'));
  rebuilds("overwritten cubin", 0);
  fs::remove(cubin);
  rebuilds("deleted cubin", 0);
  fs::remove(cubin.string() + ".log");
  rebuilds("deleted log of the cubin", 0);
  spill(cubin.string() + ".record", "");
  rebuilds("emptied record", 0);
  fs::resize_file(ptx, 0);
  rebuilds("emptied PTX", 1);
  fs::remove(ptx.string() + ".d");
  rebuilds("deleted dependencies", 1);
  fs::remove(ptx.string() + ".log");
  rebuilds("deleted log of the PTX", 1);
  fs::resize_file(root_ / "bundle.build/build.ninja", 0);
  EXPECT_NE(build({"--filter", "r32"}).output.find("has a build.ninja that mla-gen did not write"),
            std::string::npos);
}

TEST_F(Build, KillingItEndsTheCompilers) {
  // A compiler that tells its process and then takes long.
  const fs::path nvcc = root_ / "nvcc", pid_file = root_ / "pid";
  spill(nvcc, "#!/bin/sh\n[ \"$1\" = --version ] && exec nvcc --version\necho $$ > '" + pid_file.string() +
                  "'\nexec sleep 300\n");
  chmod(nvcc.c_str(), 0755);
  const std::string log = root_ / "log";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (freopen(log.c_str(), "w", stdout) == nullptr) _exit(1);
    execl(MLA_GEN, "mla-gen", "build", "--matrix", (root_ / "src/matrix.json").c_str(), "--source",
          (root_ / "src").c_str(), "--out", (root_ / "bundle").c_str(), "--nvcc", nvcc.c_str(), "--filter",
          "r32", nullptr);
    _exit(1);
  }
  const auto wait_for = [](const std::function<bool()>& done) {
    for (int i = 0; i < 300 && !done(); ++i) usleep(100000);
    return done();
  };
  const bool started = wait_for([&] {
    std::error_code error;
    return fs::file_size(pid_file, error) > 1 && !error;
  });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(started);
  const pid_t compiler = std::stoi(slurp(pid_file));
  // Gone, or a zombie that nobody has asked about.
  EXPECT_TRUE(wait_for([&] {
    std::ifstream status("/proc/" + std::to_string(compiler) + "/stat");
    std::string id, name, state;
    return !(status >> id >> name >> state) || state == "Z";
  })) << "the compiler runs on";
  // And the next build does not wait for ever.
  const Result next = build({"--filter", "r32"});
  EXPECT_EQ(next.code, 0) << next.output;
}

TEST_F(Build, NothingIsLostOnAFullDisk) {
  int code = 0;
  std::string output;
  const auto shell = [&](const std::string& command) {
    ASSERT_TRUE(run_process({"sh", "-c", command}, "", &output, &code).ok());
  };
  const std::string list =
      std::string(MLA_GEN) + " list --matrix '" + (root_ / "src/matrix.json").string() + "'";
  shell(list + " > /dev/full");
  EXPECT_EQ(code, 2);
  EXPECT_EQ(output, "mla-gen: error: stdout cannot be written: No space left on device\n");
  shell(std::string(MLA_GEN) + " --help > /dev/full");
  EXPECT_EQ(code, 2);
  EXPECT_EQ(output, "mla-gen: error: stdout cannot be written: No space left on device\n");

  // A log that cannot be written: what the compiler said is shown all the same.
  fs::create_directories(root_ / "bundle.build/ptx");
  fs::create_symlink("/dev/full", root_ / "bundle.build/ptx/cluster_r32_sm_120f.ptx.log");
  const Result good = build({"--filter", "r32"});
  EXPECT_EQ(good.code, 1) << good.output;
  EXPECT_NE(
      good.output.find("cluster_r32_sm_120f: compilation failed:\n  no message of the compiler was kept; "),
      std::string::npos)
      << good.output;
  EXPECT_NE(good.output.find(" bytes are free in " + (root_ / "bundle.build").string()), std::string::npos)
      << good.output;
  edit("kernels/fixture/part.cuh", "return x + 1.0f;", "return y;");
  const Result bad = build({"--filter", "r32"});
  EXPECT_EQ(bad.code, 1) << bad.output;
  EXPECT_NE(bad.output.find("identifier \"y\" is undefined"), std::string::npos) << bad.output;
}

TEST_F(Build, ExitCodesAreThoseOfTheHelp) {
  const auto check = [&](const std::vector<std::string>& arguments, int code, const std::string& message) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code) << result.output;
    EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
  };
  check(
      {"frobnicate"}, 2,
      "mla-gen: error: there is no command \"frobnicate\"; expected one of build, list, show, verify, diff, "
      "index, schema\n");
  check({"list", "--colour"}, 2,
        "mla-gen: error: The following argument was not expected: --colour; see mla-gen");
  check({}, 2, "mla-gen: error: A subcommand is required; see mla-gen --help\n");
  check({"--version"}, 0, "");
  check({"verify", root_ / "none"}, 2, "none: cannot be opened: No such file or directory (errno 2)\n");
  spill(root_ / "broken/manifest.json", "{}");
  check({"verify", root_ / "broken"}, 2,
        "manifest.json: (top level): \"format\" is missing; expected an object\n");
  check({"show", root_ / "broken"}, 2, "\"format\" is missing");
  ASSERT_EQ(build({"--filter", "r32"}).code, 0);
  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  check({"index", root_ / "bundle", "--out", root_ / "pipe"}, 2,
        "pipe: is a pipe, socket or device; expected a regular file or nothing\n");
  EXPECT_TRUE(fs::is_fifo(root_ / "pipe"));
  spill(root_ / "bundle/cubins/cluster_r32_sm_120f.cubin", "x");
  check({"verify", root_ / "bundle"}, 1, "has 1 bytes; the manifest says ");
}

TEST_F(Build, ListShowsConfigurationsAndRefusals) {
  const Result text = run({"list", "--matrix", root_ / "src/matrix.json"});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.output,
            "cluster_r32_sm_120f  kernels/fixture/fixture.cu MLA_ROWS=32\n"
            "cluster_r64_sm_120f  kernels/fixture/fixture.cu MLA_ROWS=64\n"
            "cluster_r64_sm_90a  kernels/fixture/fixture.cu MLA_ROWS=64\n"
            "refused cluster_r32_sm_90a: no use for it (target = sm_90a requires rows = r64)\n"
            "3 configurations, 1 refused\n");
  const Result json = run({"list", "--matrix", root_ / "src/matrix.json", "--json", "--arch", "sm_90a"});
  const nlohmann::json list = nlohmann::json::parse(json.output);
  ASSERT_EQ(list["configurations"].size(), 1u);
  EXPECT_EQ(list["configurations"][0]["macros"]["MLA_ROWS"], "64");
  EXPECT_EQ(list["refused"][0]["id"], "cluster_r32_sm_90a");
}

TEST_F(Build, DiffTellsWhatChanged) {
  ASSERT_EQ(build({"--filter", "r32"}).code, 0);
  const Result other = run({"build", "--matrix", root_ / "src/matrix.json", "--source", root_ / "src",
                            "--out", root_ / "other", "--build-dir", root_ / "bundle.build", "--filter",
                            "sm_120f", "--bundle-version", "2"});
  ASSERT_EQ(other.code, 0) << other.output;
  const Result diff = run({"diff", root_ / "bundle", root_ / "other"});
  EXPECT_EQ(diff.code, 1);
  EXPECT_NE(diff.output.find("/version: \"1.2.3\" -> \"2\"\n"), std::string::npos) << diff.output;
  EXPECT_NE(diff.output.find("cluster_r64_sm_120f: only in the second\n"), std::string::npos) << diff.output;
  EXPECT_EQ(diff.output.find("cluster_r32_sm_120f"), std::string::npos) << diff.output;
  EXPECT_EQ(run({"diff", root_ / "bundle", root_ / "none"}).code, 2);
}

// The reader on nvcc's own cubins, truncated and damaged.
TEST_F(Build, DamagedCubinsAreRefused) {
  ASSERT_EQ(build().code, 0);
  for (const manifest::Kernel& kernel : manifest().kernels) {
    const std::string text = slurp(root_ / "bundle" / kernel.file);
    const std::span<const std::byte> image = std::as_bytes(std::span(text.data(), text.size()));
    ASSERT_TRUE(cubin::check(image, kernel.file, kernel.target.sm, kernel.symbol).ok());
    test::GuardedCopy copy(image.size());

    // At, right before and right after every section's and segment's begin and end.
    const test::Bytes bytes(image.begin(), image.end());
    std::vector<uint64_t> cuts = {0, 1, 63, 64, image.size() - 1};
    const auto add = [&](uint64_t at) {
      for (uint64_t cut : {at - 1, at, at + 1}) {
        if (cut < image.size()) cuts.push_back(cut);
      }
    };
    const uint64_t sections = test::get<uint64_t>(bytes, 40);
    for (uint16_t i = 0; i < test::get<uint16_t>(bytes, 60); ++i) {
      add(sections + 64 * i);
      add(test::get<uint64_t>(bytes, sections + 64 * i + 24));
      add(test::get<uint64_t>(bytes, sections + 64 * i + 24) +
          test::get<uint64_t>(bytes, sections + 64 * i + 32));
    }
    std::mt19937 random(7);
    for (int i = 0; i < 500; ++i) cuts.push_back(random() % image.size());
    for (uint64_t cut : cuts) {
      ASSERT_FALSE(cubin::check(copy.hold(image.first(cut)), "k", kernel.target.sm, kernel.symbol).ok())
          << kernel.id << " cut at " << cut;
    }

    for (int round = 0; round < 20000; ++round) {
      const auto damaged = copy.hold(image);
      for (unsigned i = 0, flips = 1 + random() % 4; i < flips; ++i) {
        damaged[random() % damaged.size()] ^= static_cast<std::byte>(1 + random() % 255);
      }
      cubin::Info info;
      const Status status = cubin::read(damaged, "k", &info);
      if (!status.ok()) {
        ASSERT_EQ(status.message().rfind("k: ", 0), 0u) << round;
      }
    }
  }
}

}  // namespace
}  // namespace mla::generator

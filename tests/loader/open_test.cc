// SPDX-License-Identifier: Apache-2.0
//
// Opening bundles: whole ones, and a corpus of broken ones. No driver is needed.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/common/mla_params.h"
#include "manifest/sha256.h"
#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

namespace fs = std::filesystem;

mla_status try_open(const std::string& path, uint32_t flags = 0, const char* digest = nullptr) {
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.flags = flags;
  options.manifest_sha256 = digest;
  mla_bundle* bundle = nullptr;
  const mla_status status = mla_bundle_open(path.c_str(), &options, &bundle);
  if (status == MLA_SUCCESS) {
    EXPECT_OK(mla_bundle_close(bundle));
  } else {
    EXPECT_EQ(bundle, nullptr) << "an output was touched on failure";
  }
  return status;
}

class OpenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    files_.add("first");
    files_.add("second", 90, "a");
    files_.write();
  }
  std::string cubin(int index) {
    return files_.file(files_.manifest().kernels.at(static_cast<size_t>(index)).file);
  }

  TestBundle files_;
};

TEST_F(OpenTest, TellsWhatTheManifestSays) {
  files_.manifest().kernels[1].resources.spill_bytes = 16;
  files_.manifest().kernels[1].facts.priority = -3;
  files_.write();
  const Bundle bundle = open_bundle(files_);
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  ASSERT_OK(mla_bundle_get_info(bundle.get(), &info));
  EXPECT_EQ(info.kernel_count, 2u);
  EXPECT_EQ(info.workspace_zeroed_bytes, 4096u);
  EXPECT_EQ(info.format_major, 1u);
  EXPECT_STREQ(info.name, "test");
  EXPECT_STREQ(info.version, "1.2.3");
  EXPECT_STREQ(info.toolkit, "13.0.88");
  EXPECT_EQ(info.source_hash, std::string(64, '5'));
  EXPECT_EQ(info.manifest_sha256, sha256_hex(read_text(files_.file("manifest.json"))));
  EXPECT_EQ(info.path, files_.path());

  mla_kernel_info kernel = MLA_KERNEL_INFO_INIT;
  ASSERT_OK(mla_bundle_get_kernel(bundle.get(), 1, &kernel));
  EXPECT_EQ(kernel.sm, 90u);
  EXPECT_STREQ(kernel.id, "second");
  EXPECT_STREQ(kernel.file, "cubins/second.cubin");
  EXPECT_STREQ(kernel.symbol, "mla_kernel_90");
  EXPECT_STREQ(kernel.target, "sm_90a");
  EXPECT_STREQ(kernel.min_driver, "580.65.06");
  EXPECT_EQ(kernel.family, MLA_FAMILY_CLUSTER);
  EXPECT_EQ(kernel.mma, MLA_MMA_PLAIN);
  EXPECT_EQ(kernel.q_dtype, MLA_DTYPE_E4M3);
  EXPECT_EQ(kernel.kv_dtype, MLA_DTYPE_E4M3);
  EXPECT_EQ(kernel.out_dtype, MLA_DTYPE_BF16);
  EXPECT_EQ(kernel.rows, 128);
  EXPECT_EQ(kernel.head_dim_k, 576);
  EXPECT_EQ(kernel.head_dim_v, 512);
  EXPECT_EQ(kernel.tile_tokens, 64);
  EXPECT_EQ(kernel.page_size_multiple, 16);
  EXPECT_EQ(kernel.page_size_max, 1024);
  EXPECT_STREQ(kernel.unusable, "");
  EXPECT_STREQ(kernel.params_struct, "decode");
  EXPECT_EQ(kernel.params_version, 1u);
  EXPECT_EQ(kernel.kind, MLA_KIND_DECODE);
  EXPECT_EQ(kernel.arithmetic, MLA_ARITHMETIC_QUANTISED);
  EXPECT_EQ(kernel.cache_layout, MLA_CACHE_LAYOUT_DENSE);
  EXPECT_EQ(kernel.partial_dtype, 0);
  EXPECT_EQ(kernel.static_smem, 0);
  EXPECT_EQ(kernel.stack_bytes, 0);
  EXPECT_EQ(kernel.tile_cost, 4000);
  EXPECT_EQ(kernel.max_workers, 256);
  EXPECT_EQ(kernel.features, MLA_FEATURE_LSE | MLA_FEATURE_PDL | MLA_FEATURE_SEPARATE_VALUES);
  EXPECT_EQ(kernel.threads, 384);
  EXPECT_EQ(kernel.cluster_size, 4);
  EXPECT_EQ(kernel.registers, 168);
  EXPECT_EQ(kernel.dynamic_smem, 100224);
  EXPECT_EQ(kernel.spill_bytes, 16);
  EXPECT_EQ(kernel.priority, -3);
  EXPECT_ERROR(mla_bundle_get_kernel(bundle.get(), 2, &kernel), MLA_ERROR_INVALID_ARGUMENT,
               "index is 2; the bundle has 2 kernels");
}

TEST_F(OpenTest, UnknownSpillsAreMinusOne) {
  files_.manifest().kernels[0].resources.spill_bytes = manifest::kSpillUnknown;
  files_.write();
  const Bundle bundle = open_bundle(files_);
  mla_kernel_info kernel = MLA_KERNEL_INFO_INIT;
  ASSERT_OK(mla_bundle_get_kernel(bundle.get(), 0, &kernel));
  EXPECT_EQ(kernel.spill_bytes, -1);
}

TEST_F(OpenTest, NeedsNoOptionsAndNoDriver) {
  mla_bundle* bundle = nullptr;
  EXPECT_OK(mla_bundle_open(files_.path().c_str(), nullptr, &bundle));
  EXPECT_OK(mla_bundle_close(bundle));
  EXPECT_OK(mla_bundle_close(nullptr));
}

TEST_F(OpenTest, ManyFilesAreCheckedInParallel) {
  for (int i = 0; i < 60; ++i) files_.add("more_" + std::to_string(i));
  files_.write(115000);
  EXPECT_OK(try_open(files_.path()));
  // Whatever the number of threads, the first faulty file is the one that is named.
  for (const char* broken : {"more_50", "more_7", "more_31"}) {
    const std::string path = files_.file("cubins/" + std::string(broken) + ".cubin");
    std::string bytes = read_text(path);
    bytes[5000] ^= 1;
    write_text(path, bytes);
  }
  EXPECT_EQ(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE);
  EXPECT_NE(std::string(mla_last_error()).find("more_7.cubin: has sha256 "), std::string::npos)
      << mla_last_error();
}

// ---- where the bundle is -----------------------------------------------------------------------

TEST_F(OpenTest, PathFromTheEnvironment) {
  setenv("MLA_BUNDLE_PATH", files_.path().c_str(), 1);
  mla_bundle* bundle = nullptr;
  EXPECT_OK(mla_bundle_open(nullptr, nullptr, &bundle));
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  EXPECT_OK(mla_bundle_get_info(bundle, &info));
  EXPECT_EQ(info.path, files_.path());
  EXPECT_OK(mla_bundle_close(bundle));

  setenv("MLA_BUNDLE_PATH", "/no/such/folder", 1);
  EXPECT_ERROR(mla_bundle_open(nullptr, nullptr, &bundle), MLA_ERROR_IO,
               "/no/such/folder: cannot be opened: No such file or directory (errno 2) (the path is that of "
               "MLA_BUNDLE_PATH)");
  unsetenv("MLA_BUNDLE_PATH");
}

TEST_F(OpenTest, MissingBesideTheLibrary) {
  unsetenv("MLA_BUNDLE_PATH");
  const std::string beside = fs::path(MLA_LIBRARY_FILE).parent_path() / "mla_bundle";
  ASSERT_FALSE(fs::exists(beside)) << "the test assumes that no bundle lies beside the library";
  mla_bundle* bundle = nullptr;
  EXPECT_ERROR(mla_bundle_open(nullptr, nullptr, &bundle), MLA_ERROR_IO,
               beside +
                   ": cannot be opened: No such file or directory (errno 2) (no path was given and "
                   "MLA_BUNDLE_PATH is not set: looked beside the library)");
}

TEST_F(OpenTest, NoFolder) {
  EXPECT_ERROR(try_open("/no/such/folder"), MLA_ERROR_IO,
               "/no/such/folder: cannot be opened: No such file or directory (errno 2)");
  EXPECT_ERROR(try_open(files_.file("manifest.json")), MLA_ERROR_IO,
               files_.file("manifest.json") + ": is not a folder");
  EXPECT_ERROR(try_open(""), MLA_ERROR_INVALID_ARGUMENT,
               "path is empty; give the folder of a bundle, or null");
}

TEST_F(OpenTest, FolderMayBeALinkAndMayMove) {
  const std::string link = files_.path() + "_link";
  fs::create_directory_symlink(files_.path(), link);
  EXPECT_OK(try_open(link));
  fs::remove(link);
}

// ---- options -----------------------------------------------------------------------------------

TEST_F(OpenTest, PinnedManifest) {
  std::string digest = sha256_hex(read_text(files_.file("manifest.json")));
  EXPECT_OK(try_open(files_.path(), 0, digest.c_str()));
  for (char& c : digest) c = static_cast<char>(toupper(c));
  EXPECT_OK(try_open(files_.path(), 0, digest.c_str()));
  const std::string other(64, 'a');
  EXPECT_ERROR(try_open(files_.path(), 0, other.c_str()), MLA_ERROR_INVALID_BUNDLE,
               files_.file("manifest.json") + ": has sha256 " +
                   sha256_hex(read_text(files_.file("manifest.json"))) + "; options.manifest_sha256 is " +
                   other);
  EXPECT_ERROR(try_open(files_.path(), 0, "abc"), MLA_ERROR_INVALID_ARGUMENT,
               "options.manifest_sha256 is \"abc\"; must be 64 hex digits, or null for any manifest");
}

TEST_F(OpenTest, ErrorBuffer) {
  char buffer[32] = "#";
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.error = buffer;
  options.error_size = sizeof buffer;
  mla_bundle* bundle = nullptr;
  EXPECT_EQ(mla_bundle_open("/no/such/folder", &options, &bundle), MLA_ERROR_IO);
  EXPECT_STREQ(buffer, "/no/such/folder: cannot be open");
}

// Errors are printed as they are: no byte of a name may speak to the terminal or end a character.
TEST_F(OpenTest, ErrorsAreSafeToPrint) {
  EXPECT_ERROR(
      try_open("/no/\x1b[31m\x7f\xc2\x9b\xff\xc3/\u00e4\n"), MLA_ERROR_IO,
      "/no/\\u001b[31m\\u007f\\u009b\\xff\\xc3/\u00e4\n: cannot be opened: No such file or directory (errno "
      "2)");
  // Cut at a character, whatever the size.
  for (uint64_t size = 1; size < 12; ++size) {
    char buffer[16];
    mla_open_options options = MLA_OPEN_OPTIONS_INIT;
    options.error = buffer;
    options.error_size = size;
    mla_bundle* bundle = nullptr;
    EXPECT_EQ(mla_bundle_open("/\u00e4\u20ac\U0001f600", &options, &bundle), MLA_ERROR_IO);
    const std::string whole = "/\u00e4\u20ac\U0001f600:", got = buffer;
    EXPECT_EQ(whole.substr(0, got.size()), got);
    const size_t ends[] = {0, 1, 3, 6, 10, 11};
    EXPECT_TRUE(std::find(std::begin(ends), std::end(ends), got.size()) != std::end(ends)) << size;
  }
  const std::string endless(100000, 'a');
  EXPECT_ERROR(try_open(files_.path(), 0, endless.c_str()), MLA_ERROR_INVALID_ARGUMENT,
               "options.manifest_sha256 is \"" + std::string(80, 'a') +
                   "...\"; must be 64 hex digits, or null for any manifest");
}

TEST_F(OpenTest, ClosedTwice) {
  mla_bundle* bundle = nullptr;
  ASSERT_OK(mla_bundle_open(files_.path().c_str(), nullptr, &bundle));
  ASSERT_OK(mla_bundle_close(bundle));
  EXPECT_ERROR(mla_bundle_close(bundle), MLA_ERROR_INVALID_ARGUMENT,
               "bundle is not an open bundle (was it closed already?)");
  // Memory that never was one.
  uint64_t garbage[16] = {};
  EXPECT_ERROR(mla_bundle_close(reinterpret_cast<mla_bundle*>(garbage)), MLA_ERROR_INVALID_ARGUMENT,
               "bundle is not an open bundle (was it closed already?)");
  const mla_problem problem = problem_for(12, 0);
  uint32_t index = 0;
  EXPECT_ERROR(mla_select(reinterpret_cast<mla_bundle*>(garbage), &problem, &index),
               MLA_ERROR_INVALID_ARGUMENT, "bundle is not an open bundle (was it closed?)");
  mla_prepared_info info = MLA_PREPARED_INFO_INIT;
  EXPECT_ERROR(mla_kernel_get_info(reinterpret_cast<mla_kernel*>(garbage), &info), MLA_ERROR_INVALID_ARGUMENT,
               "kernel is not a prepared kernel (was its bundle closed?)");
}

TEST_F(OpenTest, UnknownFlag) {
  EXPECT_ERROR(try_open(files_.path(), 6), MLA_ERROR_INVALID_ARGUMENT,
               "options.flags is 0x6; allowed: 0, MLA_OPEN_SKIP_HASH (0x1)");
}

TEST_F(OpenTest, NullArguments) {
  EXPECT_ERROR(mla_bundle_open(files_.path().c_str(), nullptr, nullptr), MLA_ERROR_INVALID_ARGUMENT,
               "bundle is null");
  const Bundle bundle = open_bundle(files_);
  EXPECT_ERROR(mla_bundle_get_info(bundle.get(), nullptr), MLA_ERROR_INVALID_ARGUMENT, "info is null");
  mla_bundle_info info = MLA_BUNDLE_INFO_INIT;
  EXPECT_ERROR(mla_bundle_get_info(nullptr, &info), MLA_ERROR_INVALID_ARGUMENT, "bundle is null");
  mla_kernel_info kernel = MLA_KERNEL_INFO_INIT;
  EXPECT_ERROR(mla_bundle_get_kernel(nullptr, 0, &kernel), MLA_ERROR_INVALID_ARGUMENT, "bundle is null");
  EXPECT_ERROR(mla_bundle_get_kernel(bundle.get(), 0, nullptr), MLA_ERROR_INVALID_ARGUMENT, "info is null");
}

// ---- broken bundles ----------------------------------------------------------------------------

TEST_F(OpenTest, NoManifest) {
  fs::remove(files_.file("manifest.json"));
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_IO,
               files_.file("manifest.json") + ": cannot be opened: No such file or directory (errno 2)");
}

TEST_F(OpenTest, DuplicateKey) {
  files_.edit_manifest("\"id\": \"first\"", "\"id\": \"first\", \"id\": \"first\"");
  EXPECT_EQ(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE);
  const std::string message = mla_last_error();
  EXPECT_EQ(message.find(files_.file("manifest.json") + ": "), 0u) << message;
  EXPECT_NE(message.find("id"), std::string::npos) << message;
}

TEST_F(OpenTest, WrongType) {
  files_.edit_manifest("\"rows\": 128", "\"rows\": \"128\"");
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               files_.file("manifest.json") +
                   ": /kernels/0/config/rows: got \"128\"; expected an integer from 1 to 1024");
}

TEST_F(OpenTest, UnknownMajor) {
  files_.edit_manifest("\"major\": 1", "\"major\": 2");
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               files_.file("manifest.json") +
                   ": /format/major: got 2; expected 1; this program cannot read other major versions");
}

TEST_F(OpenTest, FileOutsideTheFolder) {
  files_.edit_manifest("cubins/first.cubin", "../first.cubin");
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               files_.file("manifest.json") +
                   ": /kernels/0/file: \"../first.cubin\" has \"..\"; expected a path within the bundle");
}

TEST_F(OpenTest, MissingCubin) {
  fs::remove(cubin(1));
  for (const uint32_t flags : {0u, MLA_OPEN_SKIP_HASH}) {
    EXPECT_ERROR(try_open(files_.path(), flags), MLA_ERROR_IO,
                 cubin(1) + ": cannot be opened: No such file or directory (errno 2)");
  }
}

TEST_F(OpenTest, TruncatedCubin) {
  const uint64_t bytes = fs::file_size(cubin(1));
  fs::resize_file(cubin(1), bytes - 1);
  for (const uint32_t flags : {0u, MLA_OPEN_SKIP_HASH}) {
    EXPECT_ERROR(try_open(files_.path(), flags), MLA_ERROR_INVALID_BUNDLE,
                 cubin(1) + ": has " + std::to_string(bytes - 1) + " bytes; manifest.json says " +
                     std::to_string(bytes) + " at /kernels/1/size");
  }
}

TEST_F(OpenTest, DamagedCubin) {
  std::string bytes = read_text(cubin(0));
  bytes[bytes.size() / 2] ^= 0x10;
  write_text(cubin(0), bytes);
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               cubin(0) + ": has sha256 " + sha256_hex(bytes) + "; manifest.json says " +
                   files_.manifest().kernels[0].sha256 + " at /kernels/0/sha256");
  EXPECT_OK(try_open(files_.path(), MLA_OPEN_SKIP_HASH));
}

// A manifest that was written for a cubin that was broken from the start.
TEST_F(OpenTest, CubinThatIsNoCubin) {
  const auto replace = [&](const std::string& bytes) {
    write_text(cubin(0), bytes);
    files_.manifest().kernels[0].size = bytes.size();
    files_.manifest().kernels[0].sha256 = sha256_hex(bytes);
    files_.write_manifest();
  };
  const std::string good = read_text(cubin(0));
  replace(std::string(200, 'x'));
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               cubin(0) + ": ELF header: starts with 0x78787878; not an ELF file");
  replace(make_cubin(90, files_.manifest().kernels[0].symbol));
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               cubin(0) + ": ELF header: machine code for sm_90; expected sm_120");
  replace(make_cubin(120, "another_kernel"));
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE,
               cubin(0) + ": symbol table: no kernel \"mla_kernel_120\"; it has another_kernel");
  // Every prefix is refused, none is read beyond its end.
  for (size_t bytes = 64; bytes < good.size(); bytes += 8) {
    replace(good.substr(0, bytes));
    EXPECT_EQ(try_open(files_.path()), MLA_ERROR_INVALID_BUNDLE) << bytes;
  }
}

TEST_F(OpenTest, LinkOutOfTheFolder) {
  const std::string outside = files_.path() + "_outside.cubin";
  fs::rename(cubin(0), outside);
  fs::create_symlink(outside, cubin(0));
  for (const uint32_t flags : {0u, MLA_OPEN_SKIP_HASH}) {
    EXPECT_EQ(try_open(files_.path(), flags), MLA_ERROR_INVALID_BUNDLE);
    const std::string message = mla_last_error();
    EXPECT_EQ(message.find(cubin(0) + ": "), 0u) << message;
    EXPECT_NE(message.find("link"), std::string::npos) << message;
  }
  fs::remove(outside);
}

TEST_F(OpenTest, PipeInsteadOfACubin) {
  fs::remove(cubin(0));
  ASSERT_EQ(mkfifo(cubin(0).c_str(), 0600), 0);
  EXPECT_ERROR(try_open(files_.path()), MLA_ERROR_IO,
               cubin(0) + ": is a pipe, socket or device; expected a regular file");
}

// ---- kernels of unknown kinds ------------------------------------------------------------------

std::string explain(const mla_bundle* bundle, const mla_problem& problem) {
  uint64_t needed = 0;
  EXPECT_OK(mla_select_explain(bundle, &problem, nullptr, 0, &needed));
  std::string text(needed, '\0');
  EXPECT_OK(mla_select_explain(bundle, &problem, text.data(), needed, nullptr));
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

TEST_F(OpenTest, UnknownFamilyIsThatKernelsAffair) {
  files_.edit_manifest("\"family\": \"cluster\"", "\"family\": \"tree\"");
  const Bundle bundle = open_bundle(files_);
  const mla_problem problem = problem_for(12, 0);
  uint32_t index = 77;
  EXPECT_EQ(mla_select(bundle.get(), &problem, &index), MLA_ERROR_NO_KERNEL);
  EXPECT_EQ(index, 77u);
  EXPECT_EQ(
      explain(bundle.get(), problem),
      "passed over: first: its family is \"tree\", which this program does not know\n"
      "passed over: second: built for sm_90a, which runs on compute capability 9.0 alone, not on 12.0\n");
  const mla_problem hopper = problem_for(9, 0);
  EXPECT_OK(mla_select(bundle.get(), &hopper, &index));
  EXPECT_EQ(index, 1u);
}

TEST_F(OpenTest, UnusableKernels) {
  const auto reason = [](auto change) {
    TestBundle files;
    change(files.add("odd"));
    files.write();
    const Bundle bundle = open_bundle(files);
    const std::string text = explain(bundle.get(), problem_for(12, 0));
    const std::string prefix = "passed over: odd: ";
    EXPECT_EQ(text.find(prefix), 0u) << text;
    return text.substr(prefix.size(), text.size() - prefix.size() - 1);
  };
  using K = manifest::Kernel;
  EXPECT_EQ(reason([](K& k) { k.facts.params_bytes = 648; }),
            "its parameter struct has 648 bytes; this library passes 640");
  EXPECT_EQ(reason([](K& k) { k.facts.params_version = 2; }),
            "it takes version 2 of the parameter struct decode, which this library (0.1.0) does not fill");
  EXPECT_EQ(reason([](K& k) {
              k.facts.params_struct = params_struct::kMERGE;
              k.facts.params_bytes = sizeof(MergeParams);
            }),
            "it is of kind decode and takes the parameter struct merge");
}

}  // namespace
}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
#include "manifest/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "manifest/sha256.h"

namespace mla::files {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "mla_files_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    fs::create_directories(root_ + "/bundle/cubins");
    write("outside", "secret");
    write("bundle/cubins/k", "kernel");
    ASSERT_TRUE(Folder::open(root_ + "/bundle/", &folder_).ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) { std::ofstream(root_ + "/" + path) << text; }

  std::string read(const std::string& path, uint64_t max = 100) {
    std::vector<std::byte> bytes;
    const Status status = folder_.read(path, max, &bytes);
    if (!status.ok()) return status.message();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  std::string root_;
  Folder folder_;
};

TEST_F(Files, ReadsWithinTheFolder) {
  EXPECT_EQ(read("cubins/k"), "kernel");
  uint64_t size = 0;
  EXPECT_TRUE(folder_.size("cubins/k", &size).ok());
  EXPECT_EQ(size, 6u);
  write("bundle/empty", "");
  EXPECT_EQ(read("empty"), "");
}

TEST_F(Files, FollowsLinksThatStayInside) {
  fs::create_symlink("cubins/k", root_ + "/bundle/link");
  EXPECT_EQ(read("link"), "kernel");
}

TEST_F(Files, RefusesLinksThatLeave) {
  const std::string bundle = root_ + "/bundle";
  fs::create_symlink("../outside", bundle + "/relative");
  fs::create_symlink(root_ + "/outside", bundle + "/absolute");
  fs::create_directory_symlink("..", bundle + "/up");
  EXPECT_EQ(read("relative"),
            bundle + "/relative: a link leads out of the folder " + bundle + "; expected a file in it");
  EXPECT_EQ(read("absolute"),
            bundle + "/absolute: a link leads out of the folder " + bundle + "; expected a file in it");
  EXPECT_EQ(read("up/outside"),
            bundle + "/up/outside: a link leads out of the folder " + bundle + "; expected a file in it");
}

TEST_F(Files, RefusesPathsThatLeave) {
  EXPECT_EQ(read("../outside"),
            root_ + "/bundle: \"../outside\" has \"..\"; expected a path within the bundle");
  EXPECT_EQ(read("/etc/passwd"),
            root_ + "/bundle: \"/etc/passwd\" is absolute; expected a path relative to the bundle");
}

TEST_F(Files, NamesPathAndReason) {
  EXPECT_EQ(read("none"), root_ + "/bundle/none: cannot be opened: No such file or directory (errno 2)");
  EXPECT_EQ(read("cubins"), root_ + "/bundle/cubins: is a folder; expected a file");
  EXPECT_EQ(read("cubins/k", 5), root_ + "/bundle/cubins/k: has 6 bytes; expected at most 5");
  ASSERT_EQ(mkfifo((root_ + "/bundle/pipe").c_str(), 0600), 0);
  EXPECT_EQ(read("pipe"), root_ + "/bundle/pipe: is a pipe, socket or device; expected a regular file");
  Folder none;
  EXPECT_EQ(Folder::open(root_ + "/none", &none).message(),
            root_ + "/none: cannot be opened: No such file or directory (errno 2)");
  EXPECT_EQ(Folder::open(root_ + "/outside", &none).message(), root_ + "/outside: is not a folder");
  std::vector<std::byte> bytes;
  const Status status = read_file(root_ + "/none", 100, &bytes);
  EXPECT_EQ(status.kind(), StatusKind::kIo);
  EXPECT_EQ(status.message(), root_ + "/none: cannot be opened: No such file or directory (errno 2)");
}

TEST_F(Files, FolderCanBeMoved) {
  Folder other = std::move(folder_);
  std::vector<std::byte> bytes;
  EXPECT_TRUE(other.read("cubins/k", 100, &bytes).ok());
  folder_ = std::move(other);
  EXPECT_EQ(read("cubins/k"), "kernel");
}

TEST(Sha256, KnownAnswers) {
  // FIPS 180-4 examples.
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  for (int i = 0; i < 1000; ++i) hash.update(std::string(1000, 'a'));
  EXPECT_EQ(hash.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace mla::files

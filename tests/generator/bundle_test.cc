// SPDX-License-Identifier: Apache-2.0
#include "generator/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "generator/describe.h"
#include "tests/generator/complete_cubin.h"

namespace mla::generator {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using Lines = std::vector<std::string>;

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Bundle : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "mla_bundle_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    dir_ = root_ + "/bundle";
    manifest_.name = "test";
    manifest_.version = "1";
    manifest_.toolkit = "13.0.88";
    manifest_.source_hash = std::string(64, 'a');
    add("cluster_x");
    add("cluster_y");
    ASSERT_TRUE(write());
  }
  void TearDown() override { fs::remove_all(root_); }

  void add(const std::string& name) {
    images_.push_back(test::complete_cubin(name).build());
    std::string toolkit;
    const Status status = describe(images_.back(), name, &manifest_.kernels.emplace_back(), &toolkit);
    ASSERT_TRUE(status.ok()) << status.message();
    manifest_.kernels.back().resources.spill_bytes = 16;
  }

  bool write() {
    const Status status = write_bundle(dir_, manifest_, images_, &changed_);
    message_ = status.message();
    return status.ok();
  }

  size_t entries(const std::string& path) {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }

  std::string root_, dir_, message_;
  manifest::Manifest manifest_;
  std::vector<Bytes> images_;
  bool changed_ = false;
};

TEST_F(Bundle, HoldsManifestAndCubins) {
  EXPECT_TRUE(changed_);
  EXPECT_EQ(slurp(dir_ + "/manifest.json"), manifest::write(manifest_));
  EXPECT_EQ(slurp(dir_ + "/cubins/cluster_x_sm_120f.cubin").size(), images_[0].size());
  EXPECT_EQ(entries(dir_), 2u);
  EXPECT_EQ(entries(root_), 1u) << "a temporary folder was left";
  EXPECT_EQ(verify_bundle(dir_), Lines{});
  EXPECT_NE(static_cast<int>(fs::status(dir_).permissions() & fs::perms::others_read), 0);
}

TEST_F(Bundle, SameContentIsLeftAlone) {
  const auto before = fs::last_write_time(dir_ + "/manifest.json");
  ASSERT_TRUE(write());
  EXPECT_FALSE(changed_);
  EXPECT_EQ(fs::last_write_time(dir_ + "/manifest.json"), before);
}

TEST_F(Bundle, IsReplacedAsAWhole) {
  manifest_.kernels.erase(manifest_.kernels.begin());
  images_.erase(images_.begin());
  manifest_.version = "2";
  ASSERT_TRUE(write()) << message_;
  EXPECT_TRUE(changed_);
  EXPECT_FALSE(fs::exists(dir_ + "/cubins/cluster_x_sm_120f.cubin"));
  EXPECT_EQ(entries(root_), 1u) << "the old bundle was left";
  EXPECT_EQ(verify_bundle(dir_), Lines{});
}

TEST_F(Bundle, ALinkToABundleStaysALink) {
  const std::string real = dir_;
  fs::create_directory_symlink(real, root_ + "/current");
  dir_ = root_ + "/current";
  manifest_.version = "2";
  ASSERT_TRUE(write()) << message_;
  EXPECT_TRUE(fs::is_symlink(dir_));
  EXPECT_EQ(slurp(real + "/manifest.json"), manifest::write(manifest_));
}

TEST_F(Bundle, OtherFoldersAreNotReplaced) {
  dir_ = root_ + "/home";
  fs::create_directory(dir_);
  ASSERT_TRUE(write()) << "an empty folder may be used";
  EXPECT_EQ(verify_bundle(dir_), Lines{});
  manifest_.version = "2";
  spill(dir_ + "/notes.txt", "mine");
  EXPECT_FALSE(write());
  EXPECT_EQ(message_, dir_ + ": has \"notes.txt\", which belongs to no bundle; only a bundle is replaced");
  fs::remove(dir_ + "/manifest.json");
  EXPECT_FALSE(write());
  EXPECT_EQ(message_, dir_ + ": has files and no manifest.json; only a bundle is replaced");
  EXPECT_EQ(slurp(dir_ + "/notes.txt"), "mine");
  dir_ = root_ + "/file";
  spill(dir_, "mine");
  EXPECT_FALSE(write());
  EXPECT_EQ(message_, dir_ + ": is no folder; expected a folder or nothing");
}

TEST_F(Bundle, AFolderThatOnlyLooksLikeABundleIsNotReplaced) {
  const std::string home = root_ + "/home";
  const auto error = [&] { return check_out(home).message(); };
  fs::create_directories(home + "/cubins");
  spill(home + "/manifest.json", "{\"app\": \"mine\"}");
  spill(home + "/cubins/notes.cubin", "mine");
  EXPECT_EQ(error(), home +
                         ": manifest.json: (top level): \"format\" is missing; expected an object; only a "
                         "bundle is replaced");
  spill(home + "/manifest.json", "{\"format\": {\"name\": \"mla-matrix\"}, \"kernels\": []}");
  EXPECT_EQ(error(), home +
                         ": manifest.json: /format/name: got \"mla-matrix\"; expected \"mla-bundle\"; only a "
                         "bundle is replaced");
  spill(home + "/manifest.json", "{\"format\": {\"name\": \"mla-bundle\"}, \"kernels\": []}");
  EXPECT_EQ(error(), home + ": has \"cubins\", which belongs to no bundle; only a bundle is replaced");
  spill(home + "/manifest.json",
        "{\"format\": {\"name\": \"mla-bundle\"}, \"kernels\": [{\"file\": \"cubins/a.cubin\"}]}");
  EXPECT_EQ(error(),
            home + ": has \"cubins/notes.cubin\", which belongs to no bundle; only a bundle is replaced");
  // A bundle of another format version is one all the same.
  fs::rename(home + "/cubins/notes.cubin", home + "/cubins/a.cubin");
  EXPECT_EQ(error(), "");
  fs::create_directories(home + "/cubins/b");
  EXPECT_EQ(error(), home + ": has \"cubins/b\", which belongs to no bundle; only a bundle is replaced");
  EXPECT_EQ(slurp(home + "/cubins/a.cubin"), "mine");
}

TEST_F(Bundle, PlacesThatMustNotBeReplaced) {
  const auto error = [](const std::string& dir) { return check_out(dir).message(); };
  EXPECT_EQ(error(""), "\"\" is empty; expected the path of a folder or of nothing");
  EXPECT_EQ(error("/"), "/: is the root folder; expected a folder that may be replaced");
  EXPECT_EQ(error("."), ".: is or holds the current folder; expected a folder that may be replaced");
  EXPECT_EQ(error(".."), "..: is or holds the current folder; expected a folder that may be replaced");
  EXPECT_EQ(error("/proc"), "/proc: is a mount point; expected a folder that may be replaced");
  EXPECT_EQ(error("/dev/null"), "/dev/null: is no folder; expected a folder or nothing");
  EXPECT_EQ(error("/dev/null/x/y"), "/dev/null/x/y: /dev/null is no folder");
  const std::string link = root_ + "/link";
  fs::create_directory_symlink(root_ + "/nowhere", link);
  EXPECT_EQ(error(link), link + ": is a link that leads nowhere; expected a folder or nothing");
  EXPECT_EQ(error(root_ + "/new/er"), "");
  EXPECT_EQ(error(dir_), "");
  EXPECT_EQ(error(dir_ + "/"), "");
  EXPECT_FALSE(fs::exists(root_ + "/new"));
}

TEST_F(Bundle, WhatAKilledProcessLeftIsRemoved) {
  for (const char* name : {"/.bundle.mla-gen-abcdef", "/.bundle.mla-gen-ABC012"}) {
    fs::create_directories(root_ + name + "/cubins");
    spill(root_ + name + "/cubins/half.cubin", "half");
  }
  spill(root_ + "/.bundle.mla-gen-abcdef/manifest.json", "{}");
  // Of other names, or with something else in them.
  const std::string others[] = {"/.bundle.mla-gen-zzzzzz", "/.bundle.mla-gen-abcdefg",
                                "/.other.mla-gen-abcdef"};
  for (const std::string& name : others) {
    fs::create_directories(root_ + name);
    spill(root_ + name + "/notes.txt", "mine");
  }
  ASSERT_TRUE(write()) << message_;
  EXPECT_FALSE(fs::exists(root_ + "/.bundle.mla-gen-abcdef"));
  EXPECT_FALSE(fs::exists(root_ + "/.bundle.mla-gen-ABC012"));
  for (const std::string& name : others) EXPECT_EQ(slurp(root_ + name + "/notes.txt"), "mine");
}

TEST_F(Bundle, AFileIsWrittenOnlyWhereAFileIsOrNothing) {
  const std::string path = root_ + "/file";
  ASSERT_TRUE(write_file(path, "one").ok());
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_TRUE(write_file(path, "two").ok());
  EXPECT_EQ(slurp(path), "two");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(path, root_ + "/link");
  ASSERT_TRUE(write_file(root_ + "/link", "three").ok());
  EXPECT_TRUE(fs::is_symlink(root_ + "/link"));
  EXPECT_EQ(slurp(path), "three");
  fs::create_symlink(root_ + "/nowhere", root_ + "/dangling");
  EXPECT_EQ(write_file(root_ + "/dangling", "x").message(),
            root_ + "/dangling: is a link that leads nowhere; expected a file or nothing");
  ASSERT_EQ(mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(write_file(root_ + "/pipe", "x").message(),
            root_ + "/pipe: is a pipe, socket or device; expected a regular file or nothing");
  EXPECT_TRUE(fs::is_fifo(root_ + "/pipe"));
  EXPECT_EQ(write_file(root_, "x").message(), root_ + ": is a folder; expected a regular file or nothing");
  EXPECT_EQ(entries(root_), 5u) << "a temporary file was left";
}

TEST_F(Bundle, NothingIsWrittenThatTheReaderRefuses) {
  const std::string before = slurp(dir_ + "/manifest.json");
  manifest_.name = "a b";
  EXPECT_FALSE(write());
  EXPECT_EQ(message_, "manifest.json: /name: got \"a b\"; expected 1 to 128 letters, digits and _ - . +");
  EXPECT_EQ(slurp(dir_ + "/manifest.json"), before);
}

TEST_F(Bundle, VerifyFindsDamage) {
  const std::string path = dir_ + "/cubins/cluster_x_sm_120f.cubin";
  const std::string good = slurp(path);

  spill(path, good + "x");
  EXPECT_EQ(verify_bundle(dir_), Lines{path + ": has " + std::to_string(good.size() + 1) +
                                       " bytes; the manifest says " + std::to_string(good.size())});
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  spill(path, flipped);
  const Lines wrong_hash = verify_bundle(dir_);
  ASSERT_EQ(wrong_hash.size(), 1u);
  EXPECT_EQ(wrong_hash[0].rfind(path + ": has the sha256 ", 0), 0u) << wrong_hash[0];
  EXPECT_NE(wrong_hash[0].find("; the manifest says " + manifest_.kernels[0].sha256), std::string::npos);

  fs::remove(path);
  EXPECT_EQ(verify_bundle(dir_), Lines{path + ": cannot be opened: No such file or directory (errno 2)"});
  spill(path, good);
  EXPECT_EQ(verify_bundle(dir_), Lines{});

  spill(dir_ + "/cubins/stray.ptx", "x");
  EXPECT_EQ(verify_bundle(dir_), Lines{dir_ + "/cubins/stray.ptx: is not in the manifest"});
  fs::remove(dir_ + "/cubins/stray.ptx");

  fs::rename(path, root_ + "/elsewhere");
  fs::create_symlink(root_ + "/elsewhere", path);
  EXPECT_EQ(verify_bundle(dir_),
            Lines{path + ": a link leads out of the folder " + dir_ + "; expected a file in it"});
}

TEST_F(Bundle, VerifyComparesTheManifestWithTheCubin) {
  manifest_.kernels[1].facts.rows = 64;
  manifest_.kernels[1].resources.registers = 100;
  manifest_.toolkit = "13.0.1";
  ASSERT_TRUE(write());
  const std::string x = dir_ + "/cubins/cluster_x_sm_120f.cubin",
                    y = dir_ + "/cubins/cluster_y_sm_120f.cubin";
  EXPECT_EQ(verify_bundle(dir_),
            (Lines{x + ": built with toolkit 13.0.88; the manifest says 13.0.1",
                   y + ": built with toolkit 13.0.88; the manifest says 13.0.1",
                   y + ": the cubin and the manifest differ: /config/rows: 128 -> 64",
                   y + ": the cubin and the manifest differ: /resources/registers: 168 -> 100"}));
}

TEST_F(Bundle, VerifyNamesWhatItDoesNotKnow) {
  std::string text = slurp(dir_ + "/manifest.json");
  const std::string kind = "\"kind\": \"decode\"";
  spill(dir_ + "/manifest.json", text.replace(text.find(kind), kind.size(), "\"kind\": \"append\""));
  EXPECT_EQ(verify_bundle(dir_), Lines{dir_ + "/manifest.json: cluster_x_sm_120f: its kind is \"append\", "
                                              "which this program does not know"});
}

TEST_F(Bundle, VerifyNamesABrokenManifest) {
  spill(dir_ + "/manifest.json", "{}");
  EXPECT_EQ(verify_bundle(dir_),
            Lines{dir_ + "/manifest.json: (top level): \"format\" is missing; expected an object"});
  EXPECT_EQ(verify_bundle(root_ + "/none"),
            Lines{root_ + "/none: cannot be opened: No such file or directory (errno 2)"});
}

TEST_F(Bundle, IndexRebuildsTheManifest) {
  manifest::Manifest indexed;
  ASSERT_TRUE(index_bundle(dir_, {}, &indexed).ok());
  EXPECT_EQ(manifest::write(indexed), manifest::write(manifest_));

  // From the cubins alone: spills of kernels with a stack and the source hash are not in them.
  fs::remove(dir_ + "/manifest.json");
  IndexOptions options;
  options.name = "test";
  options.version = "1";
  ASSERT_TRUE(index_bundle(dir_, options, &indexed).ok());
  EXPECT_EQ(diff_manifests(manifest::write(manifest_), manifest::write(indexed)),
            (Lines{"/source_hash: \"" + std::string(64, 'a') + "\" -> \"" + std::string(64, '0') + "\"",
                   "cluster_x_sm_120f: /resources/spill_bytes: 16 -> null",
                   "cluster_y_sm_120f: /resources/spill_bytes: 16 -> null"}));
  options.source_hash = std::string(64, 'a');
  ASSERT_TRUE(index_bundle(dir_, options, &indexed).ok());
  EXPECT_EQ(indexed.source_hash, options.source_hash);
}

TEST_F(Bundle, IndexSaysWhatItLacks) {
  manifest::Manifest indexed;
  IndexOptions fresh;
  fresh.fresh = true;
  EXPECT_EQ(
      index_bundle(dir_, fresh, &indexed).message(),
      dir_ + ": there is no readable manifest to take name and version from; give --name and --version");
  const std::string path = dir_ + "/cubins/cluster_x_sm_120f.cubin";
  fs::rename(path, dir_ + "/cubins/z.cubin");
  EXPECT_EQ(index_bundle(dir_, {}, &indexed).message(),
            dir_ +
                "/cubins/z.cubin: its kernel mla_cluster_x for sm_120f belongs into "
                "cubins/cluster_x_sm_120f.cubin");
  spill(dir_ + "/cubins/z.cubin", "junk");
  EXPECT_EQ(index_bundle(dir_, {}, &indexed).message(),
            dir_ + "/cubins/z.cubin: ELF header: the file has 4 bytes; expected at least 64");
  for (const char* name : {"/cubins/z.cubin", "/cubins/cluster_y_sm_120f.cubin"}) fs::remove(dir_ + name);
  EXPECT_EQ(index_bundle(dir_, {}, &indexed).message(), dir_ + ": has no file ending in .cubin");
}

TEST_F(Bundle, DiffNamesKernelsAndFields) {
  manifest::Manifest other = manifest_;
  const std::string text = manifest::write(manifest_);
  EXPECT_EQ(diff_manifests(text, manifest::write(other)), Lines{});
  other.version = "2";
  other.kernels[1].facts.priority = -1;
  other.kernels[0].id = "cluster_z_sm_120f";
  EXPECT_EQ(diff_manifests(text, manifest::write(other)),
            (Lines{"/version: \"1\" -> \"2\"", "cluster_x_sm_120f: only in the first",
                   "cluster_y_sm_120f: /priority: 3 -> -1", "cluster_z_sm_120f: only in the second"}));
}

}  // namespace
}  // namespace mla::generator

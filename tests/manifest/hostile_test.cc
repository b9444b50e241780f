// SPDX-License-Identifier: Apache-2.0
//
// Input made to hurt: work and messages stay small, and messages can be printed.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <clocale>
#include <filesystem>

#include "manifest/cubin.h"
#include "manifest/fields.h"
#include "manifest/manifest.h"
#include "manifest/text.h"
#include "tests/manifest/elf_builder.h"

namespace mla {
namespace {

using test::Bytes;
using test::ElfBuilder;

// Well above what sanitizers need, and far below what each of these took once.
constexpr double kSeconds = 5;

class Watch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string manifest_error(const std::string& text) {
  manifest::Manifest manifest;
  const Watch watch;
  const Status status = manifest::parse(text, "m.json", &manifest);
  EXPECT_LT(watch.seconds(), kSeconds);
  EXPECT_LE(status.message().size(), Status::kMaxMessage + 3);
  return status.ok() ? "(no error)" : status.message();
}

TEST(HostileCubin, AThousandKernelsShareOneLongName) {
  ElfBuilder elf = test::good_cubin();
  const std::string name(1 << 20, 'n');
  elf.symbols[test::kSymKernel - 1].name = name;
  Bytes image = elf.build();
  // More symbols of the same name: the table is laid at the end, where it may grow.
  const uint64_t sections = test::get<uint64_t>(image, 40);
  const uint64_t header = sections + 64 * 3;
  const uint64_t table = test::get<uint64_t>(image, header + 24),
                 size = test::get<uint64_t>(image, header + 32);
  Bytes symbols(image.begin() + static_cast<ptrdiff_t>(table),
                image.begin() + static_cast<ptrdiff_t>(table + size));
  const Bytes kernel(symbols.end() - 24, symbols.end());
  for (int i = 1; i < 1000; ++i) symbols.insert(symbols.end(), kernel.begin(), kernel.end());
  while (image.size() % 8 != 0) image.push_back(std::byte{0});
  test::put<uint64_t>(image, header + 24, image.size());
  test::put<uint64_t>(image, header + 32, symbols.size());
  image.insert(image.end(), symbols.begin(), symbols.end());

  const Watch watch;
  const Status status = cubin::check(image, "k.cubin", 120, "mla_k");
  const std::string shown = std::string(80, 'n') + "...";
  std::string names = shown;
  for (int i = 1; i < 8; ++i) names += ", " + shown;
  EXPECT_EQ(status.message(),
            "k.cubin: symbol table: no kernel \"mla_k\"; it has " + names + " and 992 more");
  cubin::Info info;
  EXPECT_EQ(cubin::read(image, "k.cubin", &info).message(),
            "k.cubin: kernel " + shown + ": a name of more than 1024 bytes");
  EXPECT_LT(watch.seconds(), kSeconds);
}

TEST(HostileCubin, EightyThousandConstants) {
  ElfBuilder elf = test::good_cubin();
  for (int i = 0; i < 80000; ++i) {
    elf.symbols.push_back({"mla_c" + std::to_string(i), 1, 0, test::kConstant3, 0, 4});
  }
  const Bytes image = elf.build();
  const Watch watch;
  cubin::Info info;
  const Status status = cubin::read(image, "k.cubin", &info);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(info.constants.size(), 80002u);
  EXPECT_LT(watch.seconds(), kSeconds);
}

TEST(HostileCubin, SectionsThatAreWalkedDoNotOverlap) {
  ElfBuilder elf = test::good_cubin();
  for (int i = 0; i < 60000; ++i) elf.sections.push_back({".note", 7, 0, 0, 0, 4, 0, {}, 0});
  Bytes image = elf.build();
  while (image.size() % 4 != 0) image.push_back(std::byte{0});
  const uint64_t notes = image.size();
  image.resize(image.size() + (1 << 20));  // 87,381 empty notes
  const uint64_t sections = test::get<uint64_t>(image, 40);
  for (uint64_t i = test::kGoodSections; i < test::kGoodSections + 60000u; ++i) {
    test::put<uint64_t>(image, sections + 64 * i + 24, notes);
    test::put<uint64_t>(image, sections + 64 * i + 32, 1 << 20);
  }
  const Watch watch;
  EXPECT_NE(cubin::check(image, "k.cubin").message().find("expected sections that do not overlap"),
            std::string::npos);
  EXPECT_LT(watch.seconds(), kSeconds);
}

TEST(HostileCubin, NamesAreShownSafely) {
  ElfBuilder elf = test::good_cubin();
  elf.symbols[test::kSymKernel - 1].name = "a\x1b[2J\xc2\x9b\xff\n";
  EXPECT_EQ(cubin::check(elf.build(), "k.cubin", 120, "mla_k").message(),
            "k.cubin: symbol table: no kernel \"mla_k\"; it has a\\u001b[2J\\u009b\\xff\\u000a");
}

TEST(HostileManifest, LongTextsGiveShortErrors) {
  const std::string most(manifest::kMaxManifestBytes - 100, 'a');
  const std::string unclosed = manifest_error("{\"name\": \"" + most);
  EXPECT_EQ(unclosed.rfind("m.json: line 1, column ", 0), 0u) << unclosed;
  EXPECT_NE(
      unclosed.find("not JSON: syntax error while parsing value - invalid string: missing closing quote"),
      std::string::npos)
      << unclosed;
  EXPECT_LT(unclosed.size(), 400u);
  const std::string key = most.substr(0, most.size() / 2 - 100);
  EXPECT_EQ(manifest_error("{\"" + key + "\": 1, \"" + key + "\": 2}"),
            "m.json: (top level): the key \"" + std::string(80, 'a') + "...\" stands twice; expected once");
  // A long key is a long pointer.
  EXPECT_EQ(manifest_error("{\"" + key + "\": {\"b\": 1, \"b\": 2}}"),
            "m.json: /" + std::string(80, 'a') + "...: the key \"b\" stands twice; expected once");
  EXPECT_EQ(manifest_error("{\"format\": \"" + key + "\"}"),
            "m.json: /format: got \"" + std::string(80, 'a') + "...\"; expected an object");
}

TEST(HostileManifest, ManyValuesAreRefused) {
  std::string zeros = "[0";
  while (zeros.size() + 4 < manifest::kMaxManifestBytes) zeros += ",0";
  EXPECT_EQ(manifest_error(zeros + "]"), "m.json: (top level): more than 524288 values");
  std::string open = "[[";
  while (open.size() + 4 < manifest::kMaxManifestBytes) open += "],[";
  EXPECT_EQ(manifest_error(open + "]]"), "m.json: (top level): more than 524288 values");
}

TEST(HostileManifest, NothingOfTheJsonLibraryShows) {
  EXPECT_EQ(manifest_error("{\"a\": 1e999}"),
            "m.json: line 1, column 11, in (top level): not JSON: number overflow parsing '1e999'");
  for (const char* text : {"", "{", "{\"a\"", "{\"a\": \"\\ud800\"}", "{\"a\": \"\\x\"}", "nul", "1.", "-",
                           "{\"a\": \"\xc3\"}", "\xef\xbb", "{\"\x01\": 1}", "/* */", "1e999", "-1e999"}) {
    const std::string error = manifest_error(text);
    EXPECT_EQ(error.find("json."), std::string::npos) << error;
    EXPECT_EQ(error.find("parse error"), std::string::npos) << error;
  }
}

TEST(SafeText, IsValidUtf8AndPrintsSafely) {
  EXPECT_EQ(safe_text("plain \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n\tx", 100),
            "plain \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n\tx");
  // Bytes that are no UTF-8: alone, cut off, overlong, a surrogate, beyond Unicode.
  EXPECT_EQ(safe_text("a\xff"
                      "b\xc3",
                      100),
            "a\\xffb\\xc3");
  EXPECT_EQ(safe_text("\xc0\x80", 100), "\\xc0\\x80");
  EXPECT_EQ(safe_text("\xe0\x80\x80", 100), "\\xe0\\x80\\x80");
  EXPECT_EQ(safe_text("\xed\xa0\x80", 100), "\\xed\\xa0\\x80");
  EXPECT_EQ(safe_text("\xf4\x90\x80\x80", 100), "\\xf4\\x90\\x80\\x80");
  // Control characters: C0, DEL, C1, separators, changes of direction.
  EXPECT_EQ(safe_text(std::string("\0\x1b\x7f", 3), 100), "\\u0000\\u001b\\u007f");
  EXPECT_EQ(safe_text("\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0", 100), "\\u0080\\u009b\\u009f\xc2\xa0");
  EXPECT_EQ(safe_text("\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6", 100), "\\u2028\\u202e\\u2066");
  // Never cut within a character or an escape.
  EXPECT_EQ(safe_text("abc\xc3\xa4", 4), "abc...");
  EXPECT_EQ(safe_text("abc\xc3\xa4", 5), "abc\xc3\xa4");
  EXPECT_EQ(safe_text("abc\xff", 6), "abc...");
  EXPECT_EQ(printable("a\nb\tc"), "a\\u000ab\\u0009c");
  EXPECT_EQ(printable(std::string(79, 'a') + "\xc3\xa4"), std::string(79, 'a') + "...");
}

TEST(SafeText, EveryErrorIs) {
  const Status status = Status::invalid("\xff" + std::string(100000, 'a'));
  EXPECT_EQ(status.message(), "\\xff" + std::string(Status::kMaxMessage - 4, 'a') + "...");
  EXPECT_EQ(manifest_error("{\"" + std::string(79, 'a') + "\xc3\xa4\": {\"b\": 1, \"b\": 2}}"),
            "m.json: /" + std::string(79, 'a') + "...: the key \"b\" stands twice; expected once");
  EXPECT_EQ(manifest_error("{\"a\xc2\x9b\": {\"b\": 1, \"b\": 2}}"),
            "m.json: /a\\u009b: the key \"b\" stands twice; expected once");
}

// Numbers in messages, and reading numbers, do not follow the locale.
TEST(Locale, DoesNotMatter) {
  std::string folder = (std::filesystem::temp_directory_path() / "mla_locale_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("LOCPATH", folder.c_str(), 1);
  const std::string make = "localedef -i de_DE -f UTF-8 '" + folder + "/de_DE.UTF-8' > /dev/null 2>&1";
  const bool made = system(make.c_str()) == 0 && setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  std::string real;
  if (made) {
    char comma[16];
    snprintf(comma, sizeof(comma), "%.1f", 1.5);
    EXPECT_STREQ(comma, "1,5");
    real = manifest_error("{\"format\": 1.5}");
  }
  setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  if (!made) GTEST_SKIP() << "no locale de_DE can be made here (package locales)";
  EXPECT_EQ(real, "m.json: /format: got 1.5; expected an object");
}

}  // namespace
}  // namespace mla

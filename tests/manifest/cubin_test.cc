// SPDX-License-Identifier: Apache-2.0
#include "manifest/cubin.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/manifest/elf_builder.h"
#include "tests/manifest/guarded_copy.h"

namespace mla::cubin {
namespace {

using test::Bytes;
using test::ElfBuilder;
using test::good_cubin;

std::string error_of(const Bytes& image) {
  test::GuardedCopy copy(image.size());
  Info info;
  const Status status = read(copy.hold(image), "k.cubin", &info);
  return status.ok() ? "(no error)" : status.message();
}

TEST(Cubin, ReadsTheGoodOne) {
  ElfBuilder elf = good_cubin();
  Info info;
  const Status status = read(elf.build(), "k.cubin", &info);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(info.sm, 120u);
  EXPECT_EQ(info.abi_version, 8u);
  EXPECT_EQ(info.toolkit, "13.0.88");
  EXPECT_EQ(info.arch, "sm_120f");
  EXPECT_EQ(info.command_line, "-v  -arch sm_120f -m 64 ");
  ASSERT_EQ(info.constants.size(), 2u);
  ASSERT_NE(info.constant("mla_rows"), nullptr);
  EXPECT_EQ(*info.constant("mla_rows"), 128u);
  ASSERT_NE(info.constant("mla_threads"), nullptr);
  EXPECT_EQ(*info.constant("mla_threads"), 384u);
  EXPECT_EQ(info.constant("rows"), nullptr);
  ASSERT_EQ(info.kernels.size(), 1u);
  const Kernel& kernel = info.kernels[0];
  EXPECT_EQ(kernel.symbol, "mla_k");
  EXPECT_EQ(kernel.code_bytes, 256u);
  EXPECT_EQ(kernel.code_offset, elf.offsets[test::kText]);
  EXPECT_EQ(kernel.registers, 168u);
  EXPECT_EQ(kernel.stack_bytes, 24u);
  EXPECT_EQ(kernel.static_smem, 400u);
  EXPECT_EQ(kernel.max_threads[0], 384u);
  EXPECT_EQ(kernel.threads[0], 0u);
  EXPECT_EQ(kernel.cluster[0], 4u);
  EXPECT_EQ(kernel.param_bytes, 640u);
  ASSERT_EQ(kernel.params.size(), 1u);
  EXPECT_EQ(kernel.params[0].bytes, 640u);
}

TEST(Cubin, OlderAbiAndOsAbi) {
  ElfBuilder elf = good_cubin();
  elf.abi_version = 7;
  elf.os_abi = 0x33;
  elf.flags = 0x00780d78 & ~0xff;  // virtual SM 120, 64 bit, accelerator
  elf.flags |= 120;
  Info info;
  const Status status = read(elf.build(), "k.cubin", &info);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(info.sm, 120u);
  EXPECT_EQ(info.abi_version, 7u);
}

TEST(Cubin, StrippedOfTheToolkitNote) {
  ElfBuilder elf = good_cubin();
  elf.sections[test::kTkinfo - 4].name = ".note.other";
  Info info;
  ASSERT_TRUE(read(elf.build(), "k.cubin", &info).ok());
  EXPECT_EQ(info.toolkit, "");
  EXPECT_EQ(info.arch, "");
}

TEST(Cubin, SymbolsOfReservedSectionsAreNoKernels) {
  for (uint16_t section : {0xfff1, 0xfff2, 0xff00}) {
    ElfBuilder elf = good_cubin();
    elf.symbols.back().section = section;
    const Bytes image = elf.build();
    Info info;
    ASSERT_TRUE(read(image, "k.cubin", &info).ok());
    EXPECT_TRUE(info.kernels.empty());
    EXPECT_FALSE(check(image, "k.cubin", 120, "mla_k").ok());
  }
}

TEST(Cubin, CheckKnowsTargetAndKernel) {
  const Bytes image = good_cubin().build();
  EXPECT_TRUE(check(image, "k.cubin", 120, "mla_k").ok());
  EXPECT_EQ(check(image, "k.cubin", 90, "mla_k").message(),
            "k.cubin: ELF header: machine code for sm_120; expected sm_90");
  EXPECT_EQ(check(image, "k.cubin", 120, "other").message(),
            "k.cubin: symbol table: no kernel \"other\"; it has mla_k");
  EXPECT_EQ(check(image, "k.cubin", 120, "mla_rows").message(),
            "k.cubin: symbol table: no kernel \"mla_rows\"; it has mla_k");
  ElfBuilder elf = good_cubin();
  elf.symbols.back().other = 0;  // a device function
  EXPECT_EQ(check(elf.build(), "k.cubin", 120, "mla_k").message(),
            "k.cubin: symbol table: no kernel \"mla_k\"; it has none");
}

// Each case changes one thing of the good cubin, before or after it is put together.
struct Case {
  const char* name;
  std::function<void(ElfBuilder&)> before;
  std::function<void(ElfBuilder&, Bytes&)> after;
  std::string error;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

template <typename T>
std::function<void(ElfBuilder&, Bytes&)> patch(size_t at, T value) {
  return [=](ElfBuilder&, Bytes& file) { test::put<T>(file, at, value); };
}
// A field of the header of `section`.
template <typename T>
std::function<void(ElfBuilder&, Bytes&)> section(size_t index, size_t at, T value) {
  return [=](ElfBuilder& elf, Bytes& file) { test::put<T>(file, elf.header_of(index) + at, value); };
}
// A field of an entry of the symbol table.
template <typename T>
std::function<void(ElfBuilder&, Bytes&)> symbol(size_t index, size_t at, T value) {
  return [=](ElfBuilder& elf, Bytes& file) { test::put<T>(file, elf.offsets[3] + 24 * index + at, value); };
}
template <typename T>
std::function<void(ElfBuilder&, Bytes&)> content(size_t index, size_t at, T value) {
  return [=](ElfBuilder& elf, Bytes& file) { test::put<T>(file, elf.offsets[index] + at, value); };
}

const std::vector<Case>& cases() {
  using B = ElfBuilder;
  static const std::function<void(B&)> same = [](B&) {};
  static const std::function<void(B&, Bytes&)> none = [](B&, Bytes&) {};
  static const std::vector<Case> all = {
      {"empty", same, [](B&, Bytes& file) { file.clear(); },
       "ELF header: the file has 0 bytes; expected at least 64"},
      {"magic", same, patch<uint8_t>(0, 0x7e), "ELF header: starts with 0x464c457e; not an ELF file"},
      {"class_32", same, patch<uint8_t>(4, 1), "ELF header: class 1; expected 2 (64 bits)"},
      {"big_endian", same, patch<uint8_t>(5, 2), "ELF header: byte order 2; expected 1 (little-endian)"},
      {"elf_version", same, patch<uint8_t>(6, 2), "ELF header: version 2; expected 1"},
      {"os_abi_linux", same, patch<uint8_t>(7, 3), "ELF header: OS ABI 0x3; expected 0x33 or 0x41 (CUDA)"},
      {"abi_version_newer", same, patch<uint8_t>(8, 9),
       "ELF header: CUDA ABI version 9 is not known to this program; expected 7 or 8"},
      {"type_relocatable", same, patch<uint16_t>(16, 1), "ELF header: type 1; expected 2 (executable)"},
      {"machine_x86", same, patch<uint16_t>(18, 62), "ELF header: machine 62; expected 190 (CUDA)"},
      {"header_size", same, patch<uint16_t>(52, 52), "ELF header: header of 52 bytes; expected 64"},
      {"program_header_size", same, patch<uint16_t>(54, 32),
       "ELF header: program headers of 32 bytes; expected 56"},
      {"program_headers_far", same, patch<uint64_t>(32, UINT64_MAX - 3),
       "program headers: 1 at offset 0xfffffffffffffffc reach beyond the file's 1648 bytes"},
      {"segment_too_long", same,
       [](B& elf, Bytes& file) { test::put<uint64_t>(file, elf.program_headers + 32, 1u << 20); },
       "program header 0: 0x100000 bytes at offset 0x0 reach beyond the file's 1648 bytes"},
      {"segment_wraps", same,
       [](B& elf, Bytes& file) { test::put<uint64_t>(file, elf.program_headers + 8, UINT64_MAX); },
       "program header 0: 0x638 bytes at offset 0xffffffffffffffff reach beyond the file's 1648 bytes"},
      {"segment_memory_short", same,
       [](B& elf, Bytes& file) { test::put<uint64_t>(file, elf.program_headers + 40, 1); },
       "program header 0: 0x1 bytes in memory are less than the 0x638 in the file"},
      {"section_header_size", same, patch<uint16_t>(58, 40),
       "ELF header: section headers of 40 bytes; expected 64"},
      {"no_sections", same, patch<uint16_t>(60, 0), "ELF header: 0 sections; expected 1 to 65279"},
      {"too_many_sections", same, patch<uint16_t>(60, 60000),
       "section headers: 60000 at offset 0x378 reach beyond the file's 1648 bytes"},
      {"section_headers_far", same, patch<uint64_t>(40, UINT64_MAX - 63),
       "section headers: 11 at offset 0xffffffffffffffc0 reach beyond the file's 1648 bytes"},
      {"names_index", same, patch<uint16_t>(62, 11),
       "ELF header: section names in section 11; there are 11 sections"},
      {"names_no_strings", same, patch<uint16_t>(62, 8),
       "section 8: type 0x1; expected the string table of the section names"},
      {"names_no_content", same, patch<uint16_t>(62, test::kShared),
       "section 9: type 0x8; expected the string table of the section names"},
      {"section_too_long", same, section<uint64_t>(test::kText, 32, 1u << 20),
       "section 8: 0x100000 bytes at offset 0x260 reach beyond the file's 1648 bytes"},
      {"null_section_far", same,
       [](B& elf, Bytes& file) {
         test::put<uint32_t>(file, elf.header_of(test::kConstant3) + 4, 0);
         test::put<uint64_t>(file, elf.header_of(test::kConstant3) + 24, 1u << 20);
       },
       "section 7: 0x8 bytes at offset 0x100000 reach beyond the file's 1648 bytes"},
      {"kernel_without_code", same, section<uint32_t>(test::kText, 4, 8),
       "kernel mla_k: has no instructions"},
      {"section_wraps", same, section<uint64_t>(test::kText, 24, UINT64_MAX - 8),
       "section 8: 0x100 bytes at offset 0xfffffffffffffff7 reach beyond the file's 1648 bytes"},
      {"strings_without_nul", same,
       [](B& elf, Bytes& file) {
         test::put<char>(file, elf.offsets[2] + test::get<uint64_t>(file, elf.header_of(2) + 32) - 1, 'x');
       },
       "section 2: a string table that does not end with NUL"},
      {"strings_empty", same, section<uint64_t>(2, 32, 0),
       "section 2: a string table that does not end with NUL"},
      {"section_name", same, section<uint32_t>(test::kText, 0, 5000),
       "section 8: name at 0x1388 of a string table of 0x7f bytes"},
      {"section_link", same, section<uint32_t>(test::kText, 40, 99),
       "section 8 (.text.mla_k): linked to section 99; there are 11"},
      {"section_alignment", same, section<uint64_t>(test::kText, 48, 24),
       "section 8 (.text.mla_k): alignment 0x18; expected a power of two"},
      {"no_symbols", same, section<uint32_t>(3, 4, 1), "section headers: no symbol table"},
      {"two_symbol_tables", same, section<uint32_t>(test::kConstant3, 4, 2),
       "section 7 (.nv.constant3): a second symbol table; expected one"},
      {"symbol_size", same, section<uint64_t>(3, 56, 16),
       "section 3 (.symtab): 0x60 bytes in entries of 0x10; expected whole entries of 0x18"},
      {"symbols_cut", same, section<uint64_t>(3, 32, 95),
       "section 3 (.symtab): 0x5f bytes in entries of 0x18; expected whole entries of 0x18"},
      {"symbol_strings", same, section<uint32_t>(3, 40, test::kText),
       "section 3 (.symtab): linked to section 8 (.text.mla_k); expected a string table"},
      {"symbol_name", same, symbol<uint32_t>(1, 0, 77),
       "symbol 1: name at 0x4d of a string table of 0x1c bytes"},
      {"symbol_section", same, symbol<uint16_t>(1, 6, 50),
       "symbol 1 (mla_rows): in section 50; there are 11"},
      {"symbol_value", same, symbol<uint64_t>(2, 8, 5),
       "symbol 2 (mla_threads): 0x4 bytes at 0x5 reach beyond section 7 (.nv.constant3) of 0x8 bytes"},
      {"symbol_wraps", same, symbol<uint64_t>(2, 16, UINT64_MAX),
       "symbol 2 (mla_threads): 0xffffffffffffffff bytes at 0x4 reach beyond section 7 (.nv.constant3) of "
       "0x8 bytes"},
      {"relocation_size", same, section<uint64_t>(test::kRela, 56, 12),
       "section 10 (.rela.text.mla_k): 0x18 bytes in entries of 0xc; expected whole entries of 0x18"},
      {"relocation_target", same, section<uint32_t>(test::kRela, 44, 12),
       "section 10 (.rela.text.mla_k): for section 12; there are 11"},
      {"relocation_table", same, section<uint32_t>(test::kRela, 40, 2),
       "section 10 (.rela.text.mla_k): linked to section 2 (.strtab); expected the symbol table"},
      {"relocation_offset", same, content<uint64_t>(test::kRela, 0, 253),
       "section 10 (.rela.text.mla_k), entry 0: at 0xfd of section 8 (.text.mla_k), which has 0x100 bytes"},
      {"relocation_symbol", same, content<uint32_t>(test::kRela, 12, 4),
       "section 10 (.rela.text.mla_k), entry 0: for symbol 4; there are 4"},
      {"note_cut", [](B& elf) { elf.sections[test::kTkinfo - 4].content.resize(8); }, none,
       "section 4 (.note.nv.tkinfo): a note at 0x0 is cut off"},
      {"note_too_long", same, content<uint32_t>(test::kTkinfo, 4, UINT32_MAX),
       "section 4 (.note.nv.tkinfo): a note of 0x100000018 bytes at 0x0 reaches beyond the section's 0x88"},
      {"note_empty", [](B& elf) { elf.sections[test::kTkinfo - 4].content.clear(); }, none,
       "section 4 (.note.nv.tkinfo): empty; expected the toolkit's note"},
      {"note_of_other_type", same, content<uint32_t>(test::kTkinfo, 8, 1),
       "section 4 (.note.nv.tkinfo): not in the known form: expected note type 2000 with five strings"},
      {"note_string_far", same, content<uint32_t>(test::kTkinfo, 12 + 12 + 20, 100000),
       "section 4 (.note.nv.tkinfo): no toolkit version or no -arch in \"Cuda compilation tools, release "
       "13.0, "
       "V13.0.88\", \"\""},
      {"info_cut", [](B& elf) { elf.sections[test::kInfo - 4].content.resize(14); }, none,
       "section 5 (.nv.info): a record at 0xc is cut off"},
      {"info_format", same, content<uint8_t>(test::kInfo, 12, 7),
       "section 5 (.nv.info): a record at 0xc has format 7; expected 1 to 4"},
      {"info_too_long", same, content<uint16_t>(test::kInfo, 2, 33),
       "section 5 (.nv.info): the record of attribute 0x2f at 0x0 has 0x21 bytes and reaches beyond the "
       "section's "
       "0x24"},
      {"info_short_record",
       [](B& elf) {
         Bytes& bytes = elf.sections[test::kInfoKernel - 4].content;
         bytes.clear();
         test::append_record(bytes, 0x3d, {4, 1});
       },
       none, "kernel mla_k: an .nv.info record is shorter than its kind"},
      {"no_registers", same, content<uint8_t>(test::kInfo, 1, 0x2e),
       "kernel mla_k: no register count in .nv.info"},
      {"constant_twice", [](B& elf) { elf.symbols[1].name = "mla_rows"; }, none,
       "symbol 2: the constant mla_rows stands twice"},
  };
  return all;
}

class BrokenCubin : public testing::TestWithParam<Case> {};

TEST_P(BrokenCubin, IsRefusedWithFilePlaceAndReason) {
  ElfBuilder elf = good_cubin();
  GetParam().before(elf);
  Bytes file = elf.build();
  GetParam().after(elf, file);
  EXPECT_EQ(error_of(file), "k.cubin: " + GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(Cases, BrokenCubin, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(CubinDamage, EveryTruncationIsRefused) {
  const Bytes image = good_cubin().build();
  test::GuardedCopy copy(image.size());
  for (size_t size = 0; size < image.size(); ++size) {
    Info info;
    const auto cut = copy.hold(std::span(image).first(size));
    ASSERT_FALSE(read(cut, "k.cubin", &info).ok()) << size;
    ASSERT_FALSE(check(cut, "k.cubin").ok()) << size;
  }
}

// No read beyond the end (the copy ends at an inaccessible page), and no damage that `check` passes
// breaks `read` in another way than with a message.
TEST(CubinDamage, EveryByteSetToEveryExtreme) {
  const Bytes image = good_cubin().build();
  test::GuardedCopy copy(image.size());
  for (size_t at = 0; at < image.size(); ++at) {
    for (uint8_t value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      const auto damaged = copy.hold(image);
      damaged[at] = std::byte{value};
      Info info;
      const Status status = read(damaged, "k.cubin", &info);
      if (!status.ok()) {
        ASSERT_EQ(status.message().rfind("k.cubin: ", 0), 0u) << at;
      }
    }
  }
}

TEST(CubinDamage, RandomBytes) {
  const Bytes image = good_cubin().build();
  test::GuardedCopy copy(image.size());
  std::mt19937 random(20);
  for (int round = 0; round < 100000; ++round) {
    const auto damaged = copy.hold(image);
    for (unsigned i = 0, count = 1 + random() % 6; i < count; ++i) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    }
    Info info;
    const Status status = read(damaged, "k.cubin", &info);
    if (!status.ok()) {
      ASSERT_EQ(status.message().rfind("k.cubin: ", 0), 0u) << round;
    }
  }
}

}  // namespace
}  // namespace mla::cubin

// SPDX-License-Identifier: Apache-2.0
//
// Writes small CUDA ELF files, so that the reader is tested on every shape of cubin without a
// compiler: each test changes one thing of a good one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace mla::test {

using Bytes = std::vector<std::byte>;

inline void append(Bytes& to, const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  to.insert(to.end(), bytes, bytes + size);
}
template <typename T>
void append_value(Bytes& to, T value) {
  append(to, &value, sizeof(value));
}
template <typename T>
void put(Bytes& in, size_t at, T value) {
  std::memcpy(in.data() + at, &value, sizeof(value));
}
template <typename T>
T get(const Bytes& in, size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof(value));
  return value;
}

struct ElfSection {
  std::string name;
  uint32_t type = 1;
  uint64_t flags = 0;
  uint32_t link = 0, info = 0;
  uint64_t align = 4, entry_size = 0;
  Bytes content;
  uint64_t nobits_size = 0;  // of a section of type 8
};

struct ElfSymbol {
  std::string name;
  uint8_t info = 0, other = 0;
  uint16_t section = 0;
  uint64_t value = 0, size = 0;
};

// A cubin in the making. Sections 1, 2 and 3 are always .shstrtab, .strtab and .symtab.
struct ElfBuilder {
  uint8_t os_abi = 0x41, abi_version = 8;
  uint32_t flags = 0x06007802;       // sm_120
  std::vector<ElfSection> sections;  // from section 4 on
  std::vector<ElfSymbol> symbols;    // from symbol 1 on

  // Offsets in the last built file.
  size_t section_headers = 0, program_headers = 0;
  std::vector<size_t> offsets;  // of the sections' contents

  size_t header_of(size_t section) const { return section_headers + 64 * section; }

  Bytes build() {
    std::vector<ElfSection> all(4);
    all[1] = {".shstrtab", 3, 0, 0, 0, 1, 0, {std::byte{0}}, 0};
    all[2] = {".strtab", 3, 0, 0, 0, 1, 0, {std::byte{0}}, 0};
    all[3] = {".symtab", 2, 0, 2, 0, 8, 24, Bytes(24), 0};
    all[0].type = 0;
    all.insert(all.end(), sections.begin(), sections.end());
    for (const ElfSymbol& symbol : symbols) {
      Bytes& table = all[3].content;
      append_value(table, static_cast<uint32_t>(all[2].content.size()));
      append_value(table, symbol.info);
      append_value(table, symbol.other);
      append_value(table, symbol.section);
      append_value(table, symbol.value);
      append_value(table, symbol.size);
      append(all[2].content, symbol.name.c_str(), symbol.name.size() + 1);
    }
    std::vector<uint32_t> names;
    for (const ElfSection& section : all) {
      names.push_back(section.name.empty() ? 0 : static_cast<uint32_t>(all[1].content.size()));
      if (!section.name.empty()) append(all[1].content, section.name.c_str(), section.name.size() + 1);
    }

    Bytes file(64);
    offsets.clear();
    for (const ElfSection& section : all) {
      while (file.size() % 16 != 0) file.push_back(std::byte{0});
      offsets.push_back(file.size());
      append(file, section.content.data(), section.content.size());
    }
    while (file.size() % 8 != 0) file.push_back(std::byte{0});
    section_headers = file.size();
    for (size_t i = 0; i < all.size(); ++i) {
      const ElfSection& section = all[i];
      append_value(file, names[i]);
      append_value(file, section.type);
      append_value(file, section.flags);
      append_value(file, uint64_t{0});
      append_value(file, static_cast<uint64_t>(i == 0 ? 0 : offsets[i]));
      append_value(file,
                   section.type == 8 ? section.nobits_size : static_cast<uint64_t>(section.content.size()));
      append_value(file, section.link);
      append_value(file, section.info);
      append_value(file, section.align);
      append_value(file, section.entry_size);
    }
    program_headers = file.size();
    append_value(file, uint32_t{1});  // PT_LOAD of the whole file
    append_value(file, uint32_t{5});
    for (uint64_t value : {uint64_t{0}, uint64_t{0}, uint64_t{0}, uint64_t{program_headers},
                           uint64_t{program_headers}, uint64_t{8}}) {
      append_value(file, value);
    }

    const uint8_t ident[] = {0x7f, 'E', 'L', 'F', 2, 1, 1, os_abi, abi_version};
    std::memcpy(file.data(), ident, sizeof(ident));
    put<uint16_t>(file, 16, 2);
    put<uint16_t>(file, 18, 190);
    put<uint32_t>(file, 20, 1);
    put<uint64_t>(file, 32, program_headers);
    put<uint64_t>(file, 40, section_headers);
    put<uint32_t>(file, 48, flags);
    put<uint16_t>(file, 52, 64);
    put<uint16_t>(file, 54, 56);
    put<uint16_t>(file, 56, 1);
    put<uint16_t>(file, 58, 64);
    put<uint16_t>(file, 60, static_cast<uint16_t>(all.size()));
    put<uint16_t>(file, 62, 1);
    return file;
  }
};

// A record of .nv.info with a payload.
inline void append_record(Bytes& to, uint8_t attribute, const std::vector<uint32_t>& words) {
  append_value(to, uint8_t{4});
  append_value(to, attribute);
  append_value(to, static_cast<uint16_t>(4 * words.size()));
  for (uint32_t word : words) append_value(to, word);
}

// Sections and symbols of the good cubin: kernel `mla_k`, constants mla_rows = 128 and
// mla_threads = 384, a block of 384 threads in clusters of 4, one parameter of 640 bytes.
enum GoodSection : uint16_t {
  kTkinfo = 4,
  kInfo,
  kInfoKernel,
  kConstant3,
  kText,
  kShared,
  kRela,
  kGoodSections
};
enum GoodSymbol : uint32_t { kSymRows = 1, kSymThreads, kSymKernel };

inline Bytes tkinfo_note(const std::string& version, const std::string& options) {
  Bytes strings{std::byte{0}};
  std::vector<uint32_t> offsets = {2, 0};
  for (const std::string& text : {std::string("ptxas"), version, std::string("branch"), options}) {
    offsets.push_back(static_cast<uint32_t>(strings.size()));
    append(strings, text.c_str(), text.size() + 1);
  }
  while (strings.size() % 4 != 0) strings.push_back(std::byte{0});
  Bytes note;
  append_value(note, uint32_t{12});
  append_value(note, static_cast<uint32_t>(24 + strings.size()));
  append_value(note, uint32_t{2000});
  append(note, "NVIDIA Corp", 12);
  for (uint32_t offset : offsets) append_value(note, offset);
  append(note, strings.data(), strings.size());
  return note;
}

inline ElfBuilder good_cubin() {
  ElfBuilder elf;
  elf.sections.resize(kGoodSections - 4);
  const auto at = [&](uint16_t index) -> ElfSection& { return elf.sections[index - 4u]; };
  at(kTkinfo) = {".note.nv.tkinfo",
                 7,
                 0,
                 0,
                 0,
                 4,
                 0,
                 tkinfo_note("Cuda compilation tools, release 13.0, V13.0.88", "-v  -arch sm_120f -m 64 "),
                 0};
  ElfSection info = {".nv.info", 0x70000000, 0, 3, 0, 4, 0, {}, 0};
  append_record(info.content, 0x2f, {kSymKernel, 168});
  append_record(info.content, 0x11, {kSymKernel, 8});
  append_record(info.content, 0x12, {kSymKernel, 24});
  at(kInfo) = info;
  ElfSection kernel = {".nv.info.mla_k", 0x70000000, 0x40, 3, kText, 4, 0, {}, 0};
  append_record(kernel.content, 0x05, {384, 1, 1});
  append_record(kernel.content, 0x3d, {4, 1, 1});
  append_record(kernel.content, 0x17, {0, 0, 640u << 18});
  append_record(kernel.content, 0x7e, {1, 2, 3, 4});                // an attribute nobody knows
  append_value(kernel.content, uint32_t{0x02800000 | 0x1900 | 3});  // CBANK_PARAM_SIZE 640
  at(kInfoKernel) = kernel;
  ElfSection constants = {".nv.constant3", 1, 2, 0, 0, 4, 0, {}, 0};
  append_value(constants.content, uint32_t{128});
  append_value(constants.content, uint32_t{384});
  at(kConstant3) = constants;
  at(kText) = {".text.mla_k", 1, 6, 3, kSymKernel, 128, 0, Bytes(256), 0};
  at(kShared) = {".nv.shared.mla_k", 8, 0x43, 0, kText, 16, 0, {}, 0x400 + 400};
  ElfSection rela = {".rela.text.mla_k", 4, 0x40, 3, kText, 8, 24, {}, 0};
  append_value(rela.content, uint64_t{16});
  append_value(rela.content, uint32_t{2});
  append_value(rela.content, uint32_t{kSymRows});
  append_value(rela.content, uint64_t{0});
  at(kRela) = rela;
  elf.symbols = {{"mla_rows", 1, 0, kConstant3, 0, 4},
                 {"mla_threads", 1, 0, kConstant3, 4, 4},
                 {"mla_k", 0x12, 0x10, kText, 0, 256}};
  return elf;
}

}  // namespace mla::test

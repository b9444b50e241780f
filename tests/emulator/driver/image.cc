// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/driver/image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace mla::emu::driver {

uint64_t elf_extent(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, SELFMAG);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  std::memcpy(&header, image, sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) return 0;
  uint64_t end =
      std::max<uint64_t>(sizeof(header), header.e_shoff + uint64_t(header.e_shnum) * sizeof(Elf64_Shdr));
  end = std::max<uint64_t>(end, header.e_phoff + uint64_t(header.e_phnum) * sizeof(Elf64_Phdr));
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, static_cast<const char*>(image) + header.e_shoff + i * sizeof(section),
                sizeof(section));
    if (section.sh_type != SHT_NOBITS) end = std::max<uint64_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

bool cubin_runs_on(uint32_t sm, char suffix, uint32_t device_sm) {
  if (suffix == 'a') return sm == device_sm;
  // Families of CUDA 13.0: {10.0, 10.3}, {11.0}, {12.0, 12.1}: within a major, so as the base form.
  return sm / 10 == device_sm / 10 && device_sm % 10 >= sm % 10;
}

bool ptx_runs_on(uint32_t sm, char suffix, uint32_t device_sm) {
  return suffix ? cubin_runs_on(sm, suffix, device_sm) : device_sm >= sm;
}

}  // namespace mla::emu::driver

// SPDX-License-Identifier: Apache-2.0
//
// Facts about images that need neither driver state nor engine.
#pragma once

#include <cstdint>

namespace mla::emu::driver {

// Bytes of the ELF image at `image`, from its own headers; 0 if it is not a 64-bit little-endian
// ELF file. The caller vouches, as for the real driver, that the image is complete.
uint64_t elf_extent(const void* image);

// Whether code for (sm, suffix) runs on a device of compute capability `device_sm`. Machine code:
// the base form and 'f' on the same major and a minor not below, 'a' on exactly that chip. PTX: the
// base form on anything not older, 'f' within the major, 'a' on exactly that chip.
bool cubin_runs_on(uint32_t sm, char suffix, uint32_t device_sm);
bool ptx_runs_on(uint32_t sm, char suffix, uint32_t device_sm);

}  // namespace mla::emu::driver

// SPDX-License-Identifier: Apache-2.0
//
// Inside of Memory, for the interpreter: regions with their storage and shadow.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/emulator/engine/engine.h"

namespace mla::emu {

// One bit per byte, lazily mapped.
class BitShadow {
 public:
  BitShadow() = default;
  ~BitShadow();
  BitShadow(const BitShadow&) = delete;
  BitShadow& operator=(const BitShadow&) = delete;

  bool map(uint64_t bits);
  void set(uint64_t first, uint64_t count, bool value);
  // True when all bits of the range are set.
  bool all(uint64_t first, uint64_t count) const {
    if ((first & 63) + count <= 64) {
      uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << (first & 63);
      return (words_[first >> 6] & mask) == mask;
    }
    return all_slow(first, count);
  }
  // `count` <= 16 bits from `first`, which must be a multiple of 16 or fit in its word.
  uint32_t get(uint64_t first, uint32_t count) const {
    uint64_t word = words_[first >> 6] >> (first & 63);
    return static_cast<uint32_t>(word & ((uint64_t{1} << count) - 1));
  }
  uint64_t count_zero(uint64_t first, uint64_t count) const;

 private:
  bool all_slow(uint64_t first, uint64_t count) const;
  uint64_t* words_ = nullptr;
  uint64_t bytes_ = 0;
};

// Who accessed a 16-byte granule of global memory last (see race.h); lazily mapped.
struct GlobalCell;

struct Region {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint8_t* host = nullptr;
  uint64_t mapped_bytes = 0;  // of the storage; 0: the caller's
  bool always_written = false;
  BitShadow written;
  GlobalCell* cells = nullptr;
  uint64_t cells_bytes = 0;

  Region() = default;
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  bool is_written(uint64_t offset, uint64_t count) const {
    return always_written || written.all(offset, count);
  }
  void mark(uint64_t offset, uint64_t count, bool value) {
    if (!always_written) written.set(offset, count, value);
  }
};

struct Memory::Impl {
  uint64_t capacity = 0;
  uint64_t used = 0;
  uint64_t next = 0;
  uint64_t serial = 0;                           // tells one Memory from another, even at the same address
  std::vector<std::unique_ptr<Region>> regions;  // by address
  uint64_t generation = 0;                       // changes when regions do
  std::map<const void*, std::map<std::string, uint64_t>> globals;  // of a module

  Region* find(uint64_t address) const;
  // The region that holds the whole range, or nullptr.
  Region* find_range(uint64_t address, uint64_t bytes) const {
    Region* region = find(address);
    return region && bytes <= region->bytes - (address - region->address) ? region : nullptr;
  }
  Region* insert(std::unique_ptr<Region> region);
  // The closest regions, for messages about stray accesses.
  std::string describe(uint64_t address) const;
};

void* map_lazy(uint64_t bytes);
void unmap_lazy(void* pointer, uint64_t bytes);

}  // namespace mla::emu

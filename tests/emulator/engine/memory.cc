// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>

#include "tests/emulator/engine/memory_impl.h"

namespace mla::emu {

namespace {

constexpr uint64_t kGuard = 4096;

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

void* map_lazy(uint64_t bytes) {
  void* pointer =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pointer == MAP_FAILED ? nullptr : pointer;
}

void unmap_lazy(void* pointer, uint64_t bytes) {
  if (pointer) munmap(pointer, bytes);
}

BitShadow::~BitShadow() { unmap_lazy(words_, bytes_); }

bool BitShadow::map(uint64_t bits) {
  bytes_ = round_up(bits / 8 + 16, 4096);
  words_ = static_cast<uint64_t*>(map_lazy(bytes_));
  return words_ != nullptr;
}

void BitShadow::set(uint64_t first, uint64_t count, bool value) {
  while (count) {
    uint64_t in_word = std::min<uint64_t>(count, 64 - (first & 63));
    uint64_t mask = (in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1) << (first & 63);
    uint64_t& word = words_[first >> 6];
    if (value) {
      word |= mask;
    } else if (word & mask) {
      word &= ~mask;
    }
    first += in_word;
    count -= in_word;
  }
}

bool BitShadow::all_slow(uint64_t first, uint64_t count) const {
  while (count) {
    uint64_t in_word = std::min<uint64_t>(count, 64 - (first & 63));
    uint64_t mask = (in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1) << (first & 63);
    if ((words_[first >> 6] & mask) != mask) return false;
    first += in_word;
    count -= in_word;
  }
  return true;
}

uint64_t BitShadow::count_zero(uint64_t first, uint64_t count) const {
  uint64_t zeros = 0;
  while (count) {
    uint64_t in_word = std::min<uint64_t>(count, 64 - (first & 63));
    uint64_t mask = (in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1) << (first & 63);
    zeros += in_word - std::popcount(words_[first >> 6] & mask);
    first += in_word;
    count -= in_word;
  }
  return zeros;
}

Region::~Region() {
  if (mapped_bytes) unmap_lazy(host, mapped_bytes);
  unmap_lazy(cells, cells_bytes);
}

Region* Memory::Impl::find(uint64_t address) const {
  auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                [](uint64_t value, const auto& region) { return value < region->address; });
  if (after == regions.begin()) return nullptr;
  Region* region = std::prev(after)->get();
  return address - region->address < region->bytes ? region : nullptr;
}

Region* Memory::Impl::insert(std::unique_ptr<Region> region) {
  auto after = std::upper_bound(regions.begin(), regions.end(), region->address,
                                [](uint64_t value, const auto& other) { return value < other->address; });
  ++generation;
  return regions.insert(after, std::move(region))->get();
}

std::string Memory::Impl::describe(uint64_t address) const {
  auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                [](uint64_t value, const auto& region) { return value < region->address; });
  char text[256];
  if (after != regions.begin()) {
    const Region& region = **std::prev(after);
    std::snprintf(text, sizeof text, "%llu bytes past the allocation 0x%llx of %llu bytes",
                  static_cast<unsigned long long>(address - region.address - region.bytes),
                  static_cast<unsigned long long>(region.address),
                  static_cast<unsigned long long>(region.bytes));
    if (address < region.address + region.bytes) {
      std::snprintf(
          text, sizeof text, "it starts %llu bytes before the end of the allocation 0x%llx of %llu bytes",
          static_cast<unsigned long long>(region.address + region.bytes - address),
          static_cast<unsigned long long>(region.address), static_cast<unsigned long long>(region.bytes));
    }
    return text;
  }
  if (after != regions.end()) {
    std::snprintf(text, sizeof text, "%llu bytes before the allocation 0x%llx of %llu bytes",
                  static_cast<unsigned long long>((*after)->address - address),
                  static_cast<unsigned long long>((*after)->address),
                  static_cast<unsigned long long>((*after)->bytes));
    return text;
  }
  return "there is no allocation";
}

// The default first address is far from host pointers (0x55..., 0x7f...) and from the windows of the
// other state spaces (0x10.. to 0x1f.. << 36, see machine.h).
Memory::Memory(uint64_t capacity_bytes, uint64_t first_address) : impl_(std::make_unique<Impl>()) {
  static std::atomic<uint64_t> serial{0};
  impl_->capacity = capacity_bytes;
  impl_->next = first_address;
  impl_->serial = ++serial;
}

Memory::~Memory() = default;

std::optional<uint64_t> Memory::allocate(uint64_t bytes, uint64_t alignment) {
  if (bytes == 0 || bytes > impl_->capacity || impl_->used > impl_->capacity - bytes) return std::nullopt;
  alignment = std::max<uint64_t>(alignment, 256);
  auto region = std::make_unique<Region>();
  region->bytes = bytes;
  region->address = round_up(impl_->next, alignment);
  region->mapped_bytes = round_up(bytes, 4096);
  region->host = static_cast<uint8_t*>(map_lazy(region->mapped_bytes));
  if (!region->host || !region->written.map(bytes)) {
    if (!region->host) region->mapped_bytes = 0;
    return std::nullopt;
  }
  impl_->next = round_up(region->address + bytes + kGuard, 256);
  impl_->used += bytes;
  return impl_->insert(std::move(region))->address;
}

bool Memory::free(uint64_t address) {
  auto& regions = impl_->regions;
  auto found = std::find_if(regions.begin(), regions.end(), [&](const auto& region) {
    return region->address == address && !region->always_written;
  });
  if (found == regions.end()) return false;
  impl_->used -= (*found)->bytes;
  regions.erase(found);
  ++impl_->generation;
  return true;
}

bool Memory::map_host(void* pointer, uint64_t bytes) {
  uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (!pointer || bytes == 0 || address + bytes < address) return false;
  for (const auto& region : impl_->regions) {
    if (address < region->address + region->bytes && region->address < address + bytes) return false;
  }
  auto region = std::make_unique<Region>();
  region->address = address;
  region->bytes = bytes;
  region->host = static_cast<uint8_t*>(pointer);
  region->always_written = true;
  impl_->insert(std::move(region));
  return true;
}

bool Memory::unmap_host(void* pointer) {
  auto& regions = impl_->regions;
  auto found = std::find_if(regions.begin(), regions.end(), [&](const auto& region) {
    return region->host == pointer && region->always_written;
  });
  if (found == regions.end()) return false;
  regions.erase(found);
  ++impl_->generation;
  return true;
}

std::optional<Allocation> Memory::find(uint64_t address) const {
  const Region* region = impl_->find(address);
  if (!region) return std::nullopt;
  return Allocation{region->address, region->bytes, region->always_written};
}

uint64_t Memory::allocated_bytes() const { return impl_->used; }
uint64_t Memory::capacity_bytes() const { return impl_->capacity; }

bool Memory::write(uint64_t address, const void* source, uint64_t bytes) {
  if (bytes == 0) return true;
  Region* region = impl_->find_range(address, bytes);
  if (!region) return false;
  std::memmove(region->host + (address - region->address), source, bytes);
  region->mark(address - region->address, bytes, true);
  return true;
}

bool Memory::read(uint64_t address, void* target, uint64_t bytes) const {
  if (bytes == 0) return true;
  const Region* region = impl_->find_range(address, bytes);
  if (!region) return false;
  std::memmove(target, region->host + (address - region->address), bytes);
  return true;
}

bool Memory::copy(uint64_t target, uint64_t source, uint64_t bytes) {
  if (bytes == 0) return true;
  Region* to = impl_->find_range(target, bytes);
  const Region* from = impl_->find_range(source, bytes);
  if (!to || !from) return false;
  uint64_t to_offset = target - to->address;
  uint64_t from_offset = source - from->address;
  std::memmove(to->host + to_offset, from->host + from_offset, bytes);
  if (from->is_written(from_offset, bytes)) {
    to->mark(to_offset, bytes, true);
  } else {
    std::vector<bool> marks(bytes);
    for (uint64_t i = 0; i < bytes; ++i) marks[i] = from->is_written(from_offset + i, 1);
    for (uint64_t i = 0; i < bytes; ++i) to->mark(to_offset + i, 1, marks[i]);
  }
  return true;
}

bool Memory::fill(uint64_t address, uint32_t value, uint32_t unit, uint64_t count) {
  if ((unit != 1 && unit != 2 && unit != 4) || count > ~uint64_t{0} / unit) return false;
  if (count == 0) return true;
  Region* region = impl_->find_range(address, count * unit);
  if (!region) return false;
  uint8_t* to = region->host + (address - region->address);
  if (unit == 1) {
    std::memset(to, static_cast<int>(value & 255), count);
  } else {
    for (uint64_t i = 0; i < count; ++i) std::memcpy(to + i * unit, &value, unit);
  }
  region->mark(address - region->address, count * unit, true);
  return true;
}

bool Memory::mark(uint64_t address, uint64_t bytes, bool written) {
  Region* region = impl_->find_range(address, bytes);
  if (!region || region->always_written) return false;
  region->mark(address - region->address, bytes, written);
  return true;
}

uint64_t Memory::unwritten_bytes(uint64_t address, uint64_t bytes) const {
  const Region* region = impl_->find_range(address, bytes);
  if (!region || region->always_written) return 0;
  return region->written.count_zero(address - region->address, bytes);
}

void* Memory::host_pointer(uint64_t address, uint64_t bytes) const {
  const Region* region = impl_->find_range(address, bytes);
  return region ? region->host + (address - region->address) : nullptr;
}

}  // namespace mla::emu

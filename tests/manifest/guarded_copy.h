// SPDX-License-Identifier: Apache-2.0
//
// A copy of some bytes whose last byte lies right before an inaccessible page: a read beyond the
// end is a crash, with or without sanitizers.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>

namespace mla::test {

class GuardedCopy {
 public:
  explicit GuardedCopy(size_t capacity) {
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    room_ = (capacity + page_ - 1) / page_ * page_ + page_;
    void* at = mmap(nullptr, room_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(static_cast<std::byte*>(at) + room_, page_, PROT_NONE) != 0) abort();
    begin_ = static_cast<std::byte*>(at);
  }
  ~GuardedCopy() { munmap(begin_, room_ + page_); }
  GuardedCopy(const GuardedCopy&) = delete;
  GuardedCopy& operator=(const GuardedCopy&) = delete;

  // Valid until the next call.
  std::span<std::byte> hold(std::span<const std::byte> bytes) {
    if (bytes.size() > room_) abort();
    std::byte* at = begin_ + room_ - bytes.size();
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
    return {at, bytes.size()};
  }

 private:
  std::byte* begin_ = nullptr;
  size_t page_ = 0, room_ = 0;
};

}  // namespace mla::test

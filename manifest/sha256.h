// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 (OpenSSL's libcrypto, which uses the processor's SHA instructions where it has them).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mla {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  // 64 lower-case hex digits; the object is used up.
  std::string hex();

 private:
  alignas(16) std::array<std::byte, 128> state_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace mla

// SPDX-License-Identifier: Apache-2.0
//
// The low-level functions: EVP would pull the provider machinery (megabytes, and a dlopen) into the
// loader for the same arithmetic.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "manifest/sha256.h"

#include <openssl/sha.h>

#include <new>

namespace mla {

namespace {
SHA256_CTX* context(std::array<std::byte, 128>& state) {
  static_assert(sizeof(SHA256_CTX) <= 128 && alignof(SHA256_CTX) <= 16);
  return std::launder(reinterpret_cast<SHA256_CTX*>(state.data()));
}
}  // namespace

Sha256::Sha256() { SHA256_Init(new (state_.data()) SHA256_CTX); }

void Sha256::update(std::span<const std::byte> bytes) {
  SHA256_Update(context(state_), bytes.data(), bytes.size());
}

std::string Sha256::hex() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_Final(digest, context(state_));
  std::string text;
  text.reserve(2 * sizeof(digest));
  for (unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

}  // namespace mla

// SPDX-License-Identifier: Apache-2.0
//
// What the emulated devices are: parsed once, at cuInit, from the environment.
//
//   MLA_EMU_DEVICES   "none", or devices separated by commas: sm_<cc>[:<SMs>][:key=value]...
//                     Keys: sms, memory, smem (most shared memory of a block), smem_sm (shared
//                     memory of an SM), gpc (SMs of a GPC, into which a cluster must fit).
//                     Sizes take K, M, G (powers of 1024). Default "sm_120:12".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mla::emu::driver {

struct DeviceConfig {
  int cc_major = 12;
  int cc_minor = 0;
  int sms = 12;
  int sms_per_gpc = 16;
  uint64_t memory_bytes = 0;
  uint32_t smem_per_sm = 0;           // bytes
  uint32_t smem_per_block_optin = 0;  // bytes
  uint32_t threads_per_sm = 0;
  uint32_t blocks_per_sm = 0;
  uint32_t max_cluster = 8;
  uint32_t l2_bytes = 0;

  int sm() const { return cc_major * 10 + cc_minor; }
};

inline constexpr uint32_t kSmemPerBlock = 48 * 1024;  // without opting in
inline constexpr uint32_t kReservedSmem = 1024;       // of every block, taken by the system
inline constexpr uint32_t kRegistersPerSm = 65536;

// Parses a value of MLA_EMU_DEVICES. On failure returns false and a sentence in *error.
bool parse_devices(std::string_view text, std::vector<DeviceConfig>* devices, std::string* error);

// Parses "123", "64K", "2G"; false if it is anything else.
bool parse_size(std::string_view text, uint64_t* bytes);

}  // namespace mla::emu::driver

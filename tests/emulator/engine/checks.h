// SPDX-License-Identifier: Apache-2.0
//
// The checks that can be turned off, or into warnings. What is found otherwise (an address outside every
// allocation, a deadlock, an instruction that cannot be executed) always ends the launch: execution cannot go
// on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mla::emu {

enum class Check : uint8_t {
  kUnwritten,
  kSharedRaces,
  kGlobalRaces,
  kCopyRaces,
  kProxyFences,
  kMbarrierInit,
  kMbarrierCounts,
  kNamedBarriers,
  kConvergence,
  kExitDuringCopy,
};

struct CheckInfo {
  Check check;
  const char* name;  // in MLA_EMU_CHECKS
  const char* what;
};

inline constexpr CheckInfo kChecks[] = {
    {Check::kUnwritten, "unwritten", "reads of shared or global memory that nothing has written"},
    {Check::kSharedRaces, "shared_races", "accesses to shared memory that no barrier orders"},
    {Check::kGlobalRaces, "global_races",
     "accesses to global memory without release and acquire between them"},
    {Check::kCopyRaces, "copy_races",
     "accesses to global memory that a bulk copy writes or reads, before its completion is known"},
    {Check::kProxyFences, "proxy_fences",
     "ordinary stores and asynchronous copies without fence.proxy.async"},
    {Check::kMbarrierInit, "mbarrier_init",
     "mbarriers used before their initialisation is known, or initialised in use"},
    {Check::kMbarrierCounts, "mbarrier_counts", "arrivals or bytes beyond what an mbarrier can count"},
    {Check::kNamedBarriers, "named_barriers", "named barriers used with different thread counts"},
    {Check::kConvergence, "convergence", ".aligned instructions in divergent code"},
    {Check::kExitDuringCopy, "exit_during_copy", "CTAs that end while a copy uses their shared memory"},
};
inline constexpr size_t kCheckCount = std::size(kChecks);

enum class CheckMode : uint8_t { kOff, kWarn, kFault };

struct Checks {
  std::array<CheckMode, kCheckCount> modes;
  Checks() { modes.fill(CheckMode::kFault); }
  CheckMode& operator[](Check check) { return modes[static_cast<size_t>(check)]; }
  CheckMode operator[](Check check) const { return modes[static_cast<size_t>(check)]; }
  bool on(Check check) const { return (*this)[check] != CheckMode::kOff; }
};

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// An address of any state space to the bytes behind it.
#include "tests/emulator/engine/machine.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

uint8_t* Machine::resolve(int lane, Space space, bool cluster_space, uint64_t address, uint32_t bytes,
                          uint32_t access, uint32_t align) {
  if (align == 0) align = bytes;
  if (access & kWrite) ++progress;
  if (space == Space::kGeneric) {
    uint64_t window = address >> 36 << 36;
    if (window == kSharedWindow) {
      space = Space::kShared;
      address -= kSharedWindow;
      cluster_space = true;
    } else if (window == kLocalWindow) {
      space = Space::kLocal;
      address -= kLocalWindow;
    } else if (window == kParamWindow) {
      space = Space::kParam;
      address -= kParamWindow;
    } else if (window == kConstWindow) {
      space = Space::kConst;
      address -= kConstWindow;
    } else {
      space = Space::kGlobal;
    }
  }
  switch (space) {
    case Space::kGlobal:
      return global_pointer(lane, address, bytes, access, align);
    case Space::kShared: {
      uint32_t offset = 0;
      Cta* owner = shared_target(lane, cluster_space, address, bytes, align, &offset);
      if (!owner || !check_shared(lane, owner, offset, bytes, access)) return nullptr;
      return owner->shared.data() + offset;
    }
    case Space::kLocal:
      if (align > 1 && address % align) {
        fault(FaultKind::kMisaligned, lane, "local address 0x%llx is not a multiple of %u",
              static_cast<ull>(address), align);
        return nullptr;
      }
      if (address + bytes > program->local_bytes || address + bytes < address) {
        fault(FaultKind::kOutOfBounds, lane,
              "access of %u bytes at local address 0x%llx; the thread has %u bytes", bytes,
              static_cast<ull>(address), program->local_bytes);
        return nullptr;
      }
      return warp->local.data() + size_t{static_cast<uint32_t>(lane < 0 ? 0 : lane)} * program->local_bytes +
             address;
    case Space::kParam:
      if (access & kWrite) {
        fault(FaultKind::kInstruction, lane, "write to the kernel parameters");
        return nullptr;
      }
      if (align > 1 && address % align) {
        fault(FaultKind::kMisaligned, lane, "parameter address 0x%llx is not a multiple of %u",
              static_cast<ull>(address), align);
        return nullptr;
      }
      if (address + bytes > params->size() || address + bytes < address) {
        fault(FaultKind::kOutOfBounds, lane,
              "read of %u bytes at parameter offset %llu; the parameters have %zu bytes", bytes,
              static_cast<ull>(address), params->size());
        return nullptr;
      }
      return const_cast<uint8_t*>(params->data()) + address;
    case Space::kConst:
      if (access & kWrite) {
        fault(FaultKind::kInstruction, lane, "write to constant memory");
        return nullptr;
      }
      if (align > 1 && address % align) {
        fault(FaultKind::kMisaligned, lane, "constant address 0x%llx is not a multiple of %u",
              static_cast<ull>(address), align);
        return nullptr;
      }
      if (address + bytes > const_space.size() || address + bytes < address) {
        fault(FaultKind::kOutOfBounds, lane,
              "read of %u bytes at constant offset %llu; the module has %zu bytes", bytes,
              static_cast<ull>(address), const_space.size());
        return nullptr;
      }
      return const_space.data() + address;
    default:
      fault(FaultKind::kInstruction, lane, "access to an unknown state space");
      return nullptr;
  }
}

}  // namespace mla::emu

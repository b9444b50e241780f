// SPDX-License-Identifier: Apache-2.0
//
// fence and membar.
#include "tests/emulator/engine/decode/table.h"

namespace mla::emu {

namespace {

// a[0] 0 fence, 1 fence.proxy.async, 2 fence.mbarrier_init, 3 none of those; a[1] of the proxy fence: 1
// shared memory, 2 global, 3 both.
Next do_fence(Machine& m, const Instr& in, uint32_t) {
  if (in.a[0] == 1) {
    m.proxy_fence(m.warp, in.a[1] & 1, in.a[1] & 2);
  } else if (in.a[0] == 2) {
    for (auto& c : m.cta->cluster->ctas) {
      for (auto& [offset, barrier] : c->mbarriers) {
        if (barrier->init_agent == m.warp->agent) barrier->init_fenced = true;
      }
    }
  } else if (in.a[0] == 0) {
    m.fence(m.warp);
    for (auto& c : m.cta->cluster->ctas) {
      for (auto& [offset, barrier] : c->mbarriers) {
        if (barrier->init_agent == m.warp->agent) barrier->init_fenced = true;
      }
    }
  }
  return Next::kNext;
}

void decode_fence(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;
  d.need(0, 2);
  in.fn = do_fence;
  if (d.mod("proxy")) {
    std::string which = d.one_of({"async", "async::generic", "async.global", "alias", "tensormap::generic"});
    if (which.empty()) d.fail(d.s.op_text + " is not supported");
    const std::string space = d.one_of({"global", "shared::cta", "shared::cluster"});
    in.a[1] = space.empty() ? 3 : space == "global" ? 2 : 1;
    if (which == "async") in.a[0] = 1;
    if (which == "async::generic") {
      d.one_of({"acquire", "release"});
      d.mod("sync_restrict::shared::cta");
      d.mod("sync_restrict::shared::cluster");
      d.mod("cluster");
      in.a[0] = in.a[1] = 1;
    }
    if (which == "tensormap::generic" || which == "alias") {
      d.one_of({"acquire", "release"});
      d.one_of({"cta", "cluster", "gpu", "sys"});
      in.a[0] = 3;
    }
    return;
  }
  if (d.mod("mbarrier_init")) {
    if (!d.mod("release") || !d.mod("cluster")) d.fail("fence.mbarrier_init needs .release.cluster");
    in.a[0] = 2;
    return;
  }
  if (name == "membar") {
    if (d.one_of({"cta", "gl", "sys"}).empty()) d.fail("membar needs .cta, .gl or .sys");
    return;
  }
  d.one_of({"sc", "acq_rel", "acquire", "release"});
  d.mod("sync_restrict::shared::cta");
  d.mod("sync_restrict::shared::cluster");
  if (d.one_of({"cta", "cluster", "gpu", "sys"}).empty()) d.fail("fence needs a scope");
}

}  // namespace

void add_fence_instructions(InstructionTable* table) {
  (*table)["fence"] = decode_fence;
  (*table)["membar"] = decode_fence;
}

}  // namespace mla::emu

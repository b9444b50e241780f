// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/conformance/case.h"

#include "tests/emulator/conformance/values.h"

namespace mla::conformance {

std::string module_text(const Case& c) {
  std::string text = ".version " + std::string(c.target == "sm_90a" ? "8.6" : "8.8") + "\n.target " +
                     c.target + "\n.address_size 64\n" + c.module + "\n.visible .entry conformance(\n" +
                     "  .param .u64 p_in, .param .u64 p_out, .param .u64 p_mem, .param .u64 p_src,\n" +
                     "  .param .align 64 .b8 p_map[128])\n";
  if (c.cluster > 1) text += ".explicitcluster\n.reqnctapercluster " + std::to_string(c.cluster) + ", 1, 1\n";
  text += ".maxntid " + std::to_string(c.block) + ", 1, 1\n.minnctapersm 1\n{\n";
  text +=
      "  .reg .pred p<8>;\n  .reg .b16 h<16>;\n  .reg .b32 r<64>;\n  .reg .b64 d<32>;\n"
      "  .reg .b32 tidx, lane, gidx;\n  .reg .b64 pin, pout, pmem, psrc, pmap;\n";
  for (size_t i = 0; i < c.in.size(); ++i) {
    text += "  .reg .b" + std::to_string(bits_of(c.in[i])) + " i" + std::to_string(i) + ";\n";
  }
  for (size_t i = 0; i < c.out.size(); ++i) {
    text += "  .reg .b" + std::to_string(bits_of(c.out[i])) + " o" + std::to_string(i) + ";\n";
  }
  text +=
      "  mov.u32 tidx, %tid.x;\n  mov.u32 lane, %laneid;\n  mov.u32 r0, %ctaid.x;\n  mov.u32 r1, %ntid.x;\n"
      "  mad.lo.u32 gidx, r0, r1, tidx;\n"
      "  ld.param.u64 pmem, [p_mem];\n  ld.param.u64 psrc, [p_src];\n"
      "  mov.b64 pmap, p_map;\n  cvta.param.u64 pmap, pmap;\n";
  const std::string in_stride = std::to_string(8 * c.in.size()),
                    out_stride = std::to_string(8 * c.out.size());
  if (!c.in.empty()) {
    text +=
        "  ld.param.u64 pin, [p_in];\n  mul.wide.u32 d0, gidx, " + in_stride + ";\n  add.u64 pin, pin, d0;\n";
  }
  for (size_t i = 0; i < c.in.size(); ++i) {
    text += "  ld.global.b" + std::to_string(bits_of(c.in[i])) + " i" + std::to_string(i) + ", [pin+" +
            std::to_string(8 * i) + "];\n";
  }
  text += "  {\n" + c.body + "\n  }\n";
  if (!c.out.empty()) {
    text += "  ld.param.u64 pout, [p_out];\n  mul.wide.u32 d0, gidx, " + out_stride +
            ";\n  add.u64 pout, pout, d0;\n";
  }
  for (size_t i = 0; i < c.out.size(); ++i) {
    text += "  st.global.b" + std::to_string(bits_of(c.out[i])) + " [pout+" + std::to_string(8 * i) + "], o" +
            std::to_string(i) + ";\n";
  }
  return text + "  ret;\n}\n";
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_integer_cases(&cases);
  add_float_cases(&cases);
  add_convert_cases(&cases);
  add_memory_cases(&cases);
  add_warp_cases(&cases);
  add_matrix_cases(&cases);
  add_async_cases(&cases);
  add_cluster_cases(&cases);
  add_sm120_cases(&cases);
  return cases;
}

}  // namespace mla::conformance

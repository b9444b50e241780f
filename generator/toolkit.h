// SPDX-License-Identifier: Apache-2.0
//
// What nvcc and ptxas say about themselves and about what they compiled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "manifest/status.h"

namespace mla::generator {

// Runs `nvcc --version`; *version is for instance "13.0.88".
Status read_nvcc_version(const std::string& nvcc, std::string* version);

// The oldest Linux driver for machine code of `toolkit` ("13.0.88" -> "580.65.06"). Fails for
// toolkits that this program does not know.
Status min_driver(std::string_view toolkit, std::string* driver);

// What `ptxas -v` says about one cubin.
struct PtxasReport {
  uint32_t registers = 0;
  uint32_t stack_bytes = 0;  // of the kernel, callees included where ptxas tells
  uint32_t spill_bytes = 0;  // the larger of spill stores and spill loads, all functions together
  std::string complaints;    // lines that tell of a warning or of an ignored request
};

// Reads the log of compiling `symbol`. `file` is how messages call the log.
Status read_ptxas_log(std::string_view log, std::string_view file, std::string_view symbol, PtxasReport* out);

}  // namespace mla::generator

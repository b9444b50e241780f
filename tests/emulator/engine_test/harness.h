// SPDX-License-Identifier: Apache-2.0
//
// Runs PTX written in a test: a module from a kernel body, memory with arrays, one launch.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/emulator/engine/engine.h"

namespace mla::emu {

// A module with one kernel `k` whose parameters are 64-bit p0 ... p3. `body` may use %r0-99, %rd0-99,
// %f0-99, %d0-9, %h0-99 (16 bits) and %p0-9. `globals` stands before the kernel.
inline std::string kernel(const std::string& body, const std::string& directives = "",
                          const std::string& globals = "", const std::string& target = "sm_120a") {
  return ".version 8.8\n.target " + target + "\n.address_size 64\n" + globals +
         ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)\n" + directives +
         "{\n.reg .b32 %r<100>;\n.reg .b64 %rd<100>;\n.reg .f32 %f<100>;\n.reg .f64 %d<10>;\n.reg .b16 "
         "%h<100>;\n.reg .pred "
         "%p<10>;\n" +
         body + "\n}\n";
}

class Emulator {
 public:
  Memory memory;
  LaunchConfig config;
  Report report;

  Emulator() { config.block = {32, 1, 1}; }

  template <class T>
  uint64_t upload(const std::vector<T>& values) {
    uint64_t address = *memory.allocate(values.size() * sizeof(T));
    memory.write(address, values.data(), values.size() * sizeof(T));
    return address;
  }

  template <class T>
  std::vector<T> download(uint64_t address, size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(memory.read(address, values.data(), count * sizeof(T)));
    return values;
  }

  // Parses and launches kernel `k`.
  const Report& run(const std::string& text, std::vector<uint64_t> params = {}) {
    Module module;
    Status status = parse_ptx(text, "test.ptx", &module);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return report;
    params.resize(4);
    std::vector<uint8_t> bytes(32);
    std::memcpy(bytes.data(), params.data(), 32);
    report = launch(module, "k", config, bytes, memory);
    return report;
  }

  // The same with many seeds; stops at the first launch that does not end as wanted.
  void run_seeds(const std::string& text, std::vector<uint64_t> params, int seeds) {
    for (int seed = 1; seed <= seeds; ++seed) {
      config.seed = static_cast<uint64_t>(seed);
      run(text, params);
      ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << report.fault.text();
    }
  }
};

// True when the launch ended with this kind and its message contains `part`.
inline ::testing::AssertionResult faults_with(const Report& report, FaultKind kind, const std::string& part) {
  if (report.fault.kind == kind && report.fault.text().find(part) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "wanted " << fault_name(kind) << " with '" << part << "', got: " << report.fault.text();
}

}  // namespace mla::emu

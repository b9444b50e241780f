// SPDX-License-Identifier: Apache-2.0
//
// Runs cases on a device and keeps or compares their results.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/emulator/conformance/case.h"
#include "tests/emulator/conformance/driver.h"

namespace mla::conformance {

inline constexpr uint64_t kSeed = 1;

struct CaseResult {
  bool ran = false;
  std::string error;            // why it did not, or how it failed
  std::vector<Values> outputs;  // o0, o1, ..., then the memory's 32-bit words when the case uses it
};

// One context on one device.
class Session {
 public:
  Session(const Driver& driver, CUdevice device) : driver_(driver), device_(device) {}
  ~Session();
  CaseResult run(const Case& c);

 private:
  std::string open();
  void close();
  std::string execute(const Case& c, CUmodule module, CaseResult* result);
  const Driver& driver_;
  CUdevice device_;
  CUcontext context_ = nullptr;
  CUdeviceptr source_ = 0, memory_ = 0;
};

// What is recorded of a case: a line "case ..." and one line per output.
//   exact outputs: the first values in hexadecimal, then a hash per chunk of all values
//   others: every value
struct Recorded {
  std::string text_hash;  // of the module text and inputs' seed
  std::string error;      // the device could not run it: why
  std::vector<std::vector<std::string>> outputs;
};

std::string text_hash(const Case& c);
std::vector<std::string> encode(const Case& c, size_t output, const Values& values);
// Type of an output; "b32" for the memory.
std::string output_type(const Case& c, size_t output);

// Compares. Returns what differs (a few lines), or an empty string. *worst receives the largest
// difference seen, in units of the case's tolerance.
std::string compare(const Case& c, const std::vector<Values>& inputs, const CaseResult& result,
                    const Recorded& recorded, double* worst);
// The same against full values.
std::string compare_values(const Case& c, const std::vector<Values>& inputs,
                           const std::vector<Values>& expected, const CaseResult& result);

// Results of single driver calls, in a fixed order: label and what came back. `device` runs sm_90a.
// `verbose` prints each as it comes.
std::vector<std::pair<std::string, std::string>> probe_api(const Driver& driver, CUdevice device,
                                                           bool verbose);
// Provokes one of kFaultProbes and notes what the calls after it give: to be done in a process of its own.
inline constexpr const char* kFaultProbes[] = {"stray", "misaligned", "trapping"};
std::vector<std::pair<std::string, std::string>> probe_fault(const Driver& driver, CUdevice device,
                                                             const std::string& name);
// Probes that must come before cuInit.
std::vector<std::pair<std::string, std::string>> probe_before_init(const Driver& driver);

}  // namespace mla::conformance

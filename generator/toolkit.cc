// SPDX-License-Identifier: Apache-2.0
#include "generator/toolkit.h"

#include <algorithm>
#include <charconv>

#include "generator/process.h"
#include "manifest/words.h"

namespace mla::generator {

Status read_nvcc_version(const std::string& nvcc, std::string* version) {
  std::string output;
  int code = 0;
  if (Status status = run_process({nvcc, "--version"}, "", &output, &code); !status.ok()) {
    return Status::io(status.message() + "; install the CUDA toolkit or give --nvcc");
  }
  if (code != 0) return Status::io(nvcc + " --version: ended with " + std::to_string(code) + ": " + output);
  // "Cuda compilation tools, release 13.0, V13.0.88"
  const size_t at = output.find(", V");
  if (at != std::string::npos) *version = output.substr(at + 3, output.find('\n', at) - at - 3);
  if (!manifest::is_version(*version)) {
    return Status::invalid(nvcc + " --version: no version of the form \", V13.0.88\" in: " + output);
  }
  return {};
}

Status min_driver(std::string_view toolkit, std::string* driver) {
  // From the release notes of each toolkit. Machine code has no compatibility across majors of the
  // toolkit, and within a major a cubin needs the driver that knows its target.
  constexpr std::pair<std::string_view, std::string_view> kTable[] = {
      {"12.8.", "570.26"}, {"12.9.", "575.51.03"}, {"13.", "580.65.06"}};
  for (const auto& [prefix, minimum] : kTable) {
    if (toolkit.starts_with(prefix)) {
      *driver = minimum;
      return {};
    }
  }
  return Status::invalid("toolkit " + std::string(toolkit) +
                         ": its oldest driver is not known; expected 12.8, 12.9 or 13.x");
}

namespace {

// The number that ends right before `what` in `line`.
bool number_before(std::string_view line, std::string_view what, uint32_t* out) {
  const size_t end = line.find(what);
  if (end == std::string_view::npos) return false;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  const auto [at, error] = std::from_chars(line.data() + begin, line.data() + end, *out);
  return error == std::errc() && at == line.data() + end;
}

}  // namespace

Status read_ptxas_log(std::string_view log, std::string_view file, std::string_view symbol,
                      PtxasReport* out) {
  PtxasReport report;
  bool has_registers = false;
  bool has_spills = false;
  uint32_t stores = 0, loads = 0;
  std::string_view function;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    constexpr std::string_view kProperties = "Function properties for ";
    if (const size_t at = line.find(kProperties); at != std::string_view::npos) {
      function = line.substr(at + kProperties.size());
    }
    uint32_t value = 0;
    if (number_before(line, " bytes stack frame", &value)) {
      if (function == symbol) {
        report.stack_bytes = std::max(report.stack_bytes, value);
        has_spills = true;
      }
      if (number_before(line, " bytes spill stores", &value)) stores += value;
      if (number_before(line, " bytes spill loads", &value)) loads += value;
    }
    if (function == symbol && number_before(line, " registers", &value)) {
      report.registers = value;
      has_registers = true;
      if (number_before(line, " bytes cumulative stack size", &value)) {
        report.stack_bytes = std::max(report.stack_bytes, value);
      }
    }
    for (std::string_view sign : {"warning", "Warning", "ignored", "Potential Performance Loss"}) {
      if (line.find(sign) == std::string_view::npos) continue;
      report.complaints += std::string(line) + "\n";
      break;
    }
  }
  report.spill_bytes = std::max(stores, loads);
  if (!has_registers || !has_spills) {
    return Status::invalid(std::string(file) + ": ptxas reported no registers and spills of " +
                           std::string(symbol) + "; expected the output of ptxas -v");
  }
  *out = report;
  return {};
}

}  // namespace mla::generator

// SPDX-License-Identifier: Apache-2.0
//
// mla-conformance: runs every case on a CUDA driver, real or emulated, and records its results or
// compares them with recorded ones.
//
//   mla-conformance --record golden.txt                         on a GPU of compute capability 9.0
//   mla-conformance --check golden.txt --library <libcuda.so.1> on the emulated driver
//   mla-conformance --list | --dump DIR                         names, PTX files
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/emulator/conformance/runner.h"
#include "tests/emulator/conformance/values.h"

namespace mla::conformance {
namespace {

constexpr char kFormat[] = "mla-conformance 1";

struct Golden {
  std::string device;
  std::map<std::string, Recorded> cases;
  std::vector<std::pair<std::string, std::string>> api;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool read_golden(const std::string& path, Golden* golden, std::string* error) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || line != kFormat) {
    *error = path + ": not a file of recorded results (its first line must be \"" + kFormat + "\")";
    return false;
  }
  Recorded* current = nullptr;
  for (size_t number = 2; std::getline(file, line); ++number) {
    const std::vector<std::string> fields = split(line, '\t');
    if (fields.size() == 2 && fields[0] == "device") {
      golden->device = fields[1];
    } else if (fields.size() >= 3 && fields[0] == "case") {
      current = &golden->cases[fields[1]];
      current->text_hash = fields[2];
      if (fields.size() > 3) current->error = fields[3];
    } else if (fields.size() == 2 && fields[0] == "out" && current) {
      current->outputs.push_back(split(fields[1], ' '));
    } else if (fields.size() == 3 && fields[0] == "api") {
      golden->api.emplace_back(fields[1], fields[2]);
    } else {
      *error = path + ":" + std::to_string(number) + ": not understood: " + line.substr(0, 60);
      return false;
    }
  }
  return true;
}

int capability(const Driver& driver, CUdevice device) {
  int major = 0, minor = 0;
  driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return major * 10 + minor;
}

std::string describe_device(const Driver& driver, CUdevice device) {
  char name[128] = "";
  int version = 0, sms = 0;
  driver.cuDeviceGetName(name, sizeof(name), device);
  driver.cuDriverGetVersion(&version);
  driver.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  const int cc = capability(driver, device);
  return std::string(name) + ", compute capability " + std::to_string(cc / 10) + "." +
         std::to_string(cc % 10) + ", " + std::to_string(sms) + " SMs, driver " + std::to_string(version);
}

struct Options {
  std::string library = "libcuda.so.1";
  std::string record, check, filter, dump;
  std::string probe_fault;
  bool list = false, verbose = false;
  size_t resume = 0;  // first case to record; what came before is in <record>.part
  char** argv = nullptr;
};

// The results of probe_fault in a process of its own.
std::vector<std::pair<std::string, std::string>> probe_fault_apart(const Options& options,
                                                                   const std::string& name) {
  std::vector<std::pair<std::string, std::string>> results;
  const std::string command = "exec /proc/" + std::to_string(getpid()) + "/exe --library '" +
                              options.library + "' --probe-fault " + name;
  FILE* pipe = popen(command.c_str(), "r");
  char line[512];
  while (pipe && std::fgets(line, sizeof(line), pipe)) {
    const std::vector<std::string> fields = split(std::string(line, std::strcspn(line, "\n")), '\t');
    if (fields.size() == 2) results.emplace_back(fields[0], fields[1]);
  }
  if (pipe) pclose(pipe);
  return results;
}

// Errors after which a process can make no further context on the device.
bool ends_the_process(const CaseResult& result) {
  for (const char* name : {"ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "LAUNCH_FAILED", "MISALIGNED_ADDRESS",
                           "HARDWARE_STACK_ERROR", "INVALID_ADDRESS_SPACE", "INVALID_PC"}) {
    if (result.error.find(name) != std::string::npos) return true;
  }
  return false;
}

std::string part_file(const Options& options) { return options.record + ".part"; }

// Replaces this process by one that records the cases from `first` on. Returns only on failure.
void resume_recording(const Options& options, const std::string& recorded, size_t first) {
  std::ofstream(part_file(options)) << recorded;
  std::fflush(stdout);
  const std::string number = std::to_string(first);
  std::vector<char*> arguments;
  for (char** a = options.argv; *a != nullptr; ++a) {
    if (std::string(*a) == "--resume" && a[1] != nullptr) {
      ++a;
      continue;
    }
    arguments.push_back(*a);
  }
  arguments.push_back(const_cast<char*>("--resume"));
  arguments.push_back(const_cast<char*>(number.c_str()));
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
  std::perror("execv");
}

int run(const Options& options) {
  std::vector<Case> cases;
  std::map<std::string, int> names;
  for (Case& c : all_cases()) {
    if (names[c.name]++) {
      std::fprintf(stderr, "two cases are named %s\n", c.name.c_str());
      return 2;
    }
    if (c.name.find(options.filter) != std::string::npos) cases.push_back(std::move(c));
  }
  if (options.list) {
    for (const Case& c : cases) std::printf("%s\t%s\n", c.target.c_str(), c.name.c_str());
    return 0;
  }
  if (!options.dump.empty()) {
    for (size_t i = 0; i < cases.size(); ++i) {
      char name[32];
      std::snprintf(name, sizeof(name), "/%04zu.ptx", i);
      std::ofstream(options.dump + name) << "// " << cases[i].name << "\n" << module_text(cases[i]);
    }
    return 0;
  }

  Driver driver;
  if (const std::string error = driver.load(options.library); !error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  std::vector<std::pair<std::string, std::string>> api;
  if (options.filter.empty()) api = probe_before_init(driver);
  if (const CUresult error = driver.cuInit(0)) {
    std::fprintf(stderr, "cuInit: %s\n", driver.describe(error).c_str());
    return 2;
  }
  std::map<std::string, CUdevice> device_of;  // by target
  int count = 0;
  driver.cuDeviceGetCount(&count);
  for (int i = count - 1; i >= 0; --i) {
    const int cc = capability(driver, i);
    if (cc == 90) device_of["sm_90a"] = i;
    if (cc / 10 == 12) device_of["sm_120f"] = i;
  }
  if (!options.probe_fault.empty()) {
    if (!device_of.count("sm_90a")) return 2;
    for (const auto& [label, result] : probe_fault(driver, device_of["sm_90a"], options.probe_fault)) {
      std::printf("%s\t%s\n", label.c_str(), result.c_str());
    }
    return 0;
  }
  for (const auto& [target, device] : device_of)
    std::printf("%s: %s\n", target.c_str(), describe_device(driver, device).c_str());

  Golden golden;
  std::string error;
  if (!options.check.empty() && !read_golden(options.check, &golden, &error)) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  std::map<std::string, std::unique_ptr<Session>> sessions;
  for (const auto& [target, device] : device_of) sessions[target] = std::make_unique<Session>(driver, device);

  std::ostringstream recorded;
  if (options.resume > 0) recorded << std::ifstream(part_file(options)).rdbuf();
  size_t passed = 0, failed = 0, not_run = 0, kept = 0;
  std::map<std::string, size_t> reasons;
  std::string beyond;
  for (size_t index = options.resume; index < cases.size(); ++index) {
    const Case& c = cases[index];
    const auto pass_over = [&](const std::string& reason) {
      ++not_run;
      ++reasons[reason];
    };
    if (!sessions.count(c.target)) {
      pass_over("no device for " + c.target);
      continue;
    }
    const auto known = golden.cases.find(c.name);
    if (options.record.empty() && !c.expect) {
      if (known == golden.cases.end()) {
        pass_over("nothing is recorded yet: record again");
        continue;
      }
      if (known->second.text_hash != text_hash(c)) {
        ++failed;
        std::printf("FAILED %s\n  recorded for another text of this case: record again\n", c.name.c_str());
        continue;
      }
      if (!known->second.error.empty()) {
        pass_over("the recording GPU could not run it: " + known->second.error);
        continue;
      }
    }
    if (options.verbose) {
      std::printf("%s\n", c.name.c_str());
      std::fflush(stdout);
    }
    const CaseResult result = sessions[c.target]->run(c);
    const std::vector<Values> inputs = make_inputs(c, kSeed);
    if (!options.record.empty()) {
      if (c.expect) {
        pass_over("compared with the PTX manual, not recorded");
        continue;
      }
      std::string reason = result.error;
      for (char& letter : reason) letter = letter == '\n' || letter == '\t' ? ' ' : letter;
      recorded << "case\t" << c.name << "\t" << text_hash(c) << (result.ran ? "" : "\t" + reason) << "\n";
      if (!result.ran) std::printf("not run: %s: %s\n", c.name.c_str(), reason.c_str());
      for (size_t o = 0; o < result.outputs.size(); ++o)
        recorded << "out\t" << join(encode(c, o, result.outputs[o])) << "\n";
      ++kept;
      if (!result.ran && ends_the_process(result)) resume_recording(options, recorded.str(), index + 1);
      continue;
    }
    if (!result.ran && result.error.rfind("cuModuleLoadData", 0) == 0 && !driver.emulator_report().empty()) {
      // Valid PTX (the recording GPU ran it) beyond the emulator, which says so.
      pass_over("beyond the emulator");
      beyond += "    " + c.name + "\n";
      continue;
    }
    double worst = 0;
    const std::string difference = !result.ran ? "  " + result.error + "\n"
                                   : c.expect  ? compare_values(c, inputs, c.expect(c, inputs), result)
                                               : compare(c, inputs, result, known->second, &worst);
    if (options.verbose && worst > 0) std::printf("%s: %.3g of the tolerance\n", c.name.c_str(), worst);
    if (difference.empty()) {
      ++passed;
    } else {
      ++failed;
      std::printf("FAILED %s\n%s", c.name.c_str(), difference.c_str());
    }
  }
  sessions.clear();
  const auto write = [&] {
    std::ofstream file(options.record);
    file << kFormat << "\n";
    if (device_of.count("sm_90a")) file << "device\t" << describe_device(driver, device_of["sm_90a"]) << "\n";
    for (const auto& [label, result] : api) file << "api\t" << label << "\t" << result << "\n";
    file << recorded.str();
    file.close();
    if (!file) std::fprintf(stderr, "%s cannot be written\n", options.record.c_str());
    return bool(file);
  };
  // Kept before the driver calls: a driver that does not survive them leaves the cases.
  if (!options.record.empty() && !write()) return 2;
  if (options.filter.empty() && device_of.count("sm_90a")) {
    const auto more = probe_api(driver, device_of["sm_90a"], options.verbose);
    api.insert(api.end(), more.begin(), more.end());
    for (const char* name : kFaultProbes) {
      const auto apart = probe_fault_apart(options, name);
      api.insert(api.end(), apart.begin(), apart.end());
    }
  }

  if (!options.record.empty()) {
    if (!write()) return 2;
    std::remove(part_file(options).c_str());
    kept += options.resume;
    std::printf("recorded %zu cases and %zu driver calls in %s\n", kept, api.size(), options.record.c_str());
    for (const auto& [reason, number] : reasons)
      std::printf("  %zu not recorded: %s\n", number, reason.c_str());
    return 0;
  }

  size_t api_passed = 0, api_failed = 0;
  std::map<std::string, std::string> results(api.begin(), api.end());
  for (const auto& [label, expected] : golden.api) {
    if (!options.filter.empty()) break;
    const auto got = results.find(label);
    if (got != results.end() && got->second == expected) {
      ++api_passed;
      continue;
    }
    ++api_failed;
    std::printf("FAILED driver call: %s\n  %s, recorded %s\n", label.c_str(),
                got == results.end() ? "not called" : got->second.c_str(), expected.c_str());
  }
  std::printf("recorded on: %s\n", golden.device.c_str());
  std::printf("cases: %zu passed, %zu failed, %zu not run\n", passed, failed, not_run);
  for (const auto& [reason, number] : reasons) std::printf("  %zu not run: %s\n", number, reason.c_str());
  if (!beyond.empty()) std::printf("  beyond the emulator:\n%s", beyond.c_str());
  std::printf("driver calls: %zu passed, %zu failed\n", api_passed, api_failed);
  return failed || api_failed ? 1 : 0;
}

}  // namespace
}  // namespace mla::conformance

int main(int argc, char** argv) {
  mla::conformance::Options options;
  CLI::App app{
      "Runs small PTX programs, one per instruction form, and compares a driver's results with recorded "
      "ones"};
  app.add_option("--library", options.library, "CUDA driver to load")->capture_default_str();
  app.add_option("--record", options.record, "write the results to this file");
  app.add_option("--check", options.check, "compare the results with this file");
  app.add_option("--filter", options.filter, "only cases whose name has this text");
  app.add_option("--dump", options.dump, "write the PTX of every case into this folder");
  app.add_option("--probe-fault", options.probe_fault, "only provoke this fault and print what follows");
  app.add_flag("--list", options.list, "print the names of the cases");
  app.add_flag("--verbose", options.verbose, "print how much of each tolerance was used");
  app.add_option("--resume", options.resume, "first case to record, after an error that ends a process");
  options.argv = argv;
  CLI11_PARSE(app, argc, argv);
  if (options.record.empty() + options.check.empty() + options.dump.empty() + !options.list +
          options.probe_fault.empty() !=
      4) {
    std::fprintf(stderr, "give one of --record, --check, --dump, --list\n");
    return 2;
  }
  return mla::conformance::run(options);
}

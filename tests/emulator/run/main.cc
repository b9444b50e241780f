// SPDX-License-Identifier: Apache-2.0
//
// mla-emu run: executes one kernel of a PTX file on the emulator's engine, with buffers filled from the
// command line or a JSON file, and says what the checks found and what the buffers hold. Exit code: 0 the
// kernel ran, 1 it was stopped by a fault, 2 the request is wrong.
#include <CLI/CLI.hpp>
#include <bit>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/emulator/engine/engine.h"
#include "tests/emulator/engine/fp.h"

namespace mla::emu {
namespace {

struct RequestError {
  std::string message;
};

struct ElementType {
  const char* name;
  uint32_t bytes;
};
constexpr ElementType kTypes[] = {{"u8", 1},  {"s8", 1},  {"u16", 2}, {"s16", 2}, {"u32", 4},
                                  {"s32", 4}, {"u64", 8}, {"s64", 8}, {"f16", 2}, {"bf16", 2},
                                  {"f32", 4}, {"f64", 8}, {"e4m3", 1}};

const ElementType& type_named(const std::string& name) {
  std::string known;
  for (const ElementType& type : kTypes) {
    if (name == type.name) return type;
    known += std::string(" ") + type.name;
  }
  throw RequestError{"type \"" + name + "\" is not known; known are" + known};
}

uint64_t encode(const ElementType& type, double value) {
  const std::string name = type.name;
  if (name == "f32") return f32_bits(static_cast<float>(value));
  if (name == "f64") return std::bit_cast<uint64_t>(value);
  if (name == "f16") return f16_from_double(value);
  if (name == "bf16") return bf16_from_double(value);
  if (name == "e4m3") return e4m3_from_double(value);
  return value < 0 ? static_cast<uint64_t>(static_cast<int64_t>(value)) : static_cast<uint64_t>(value);
}

std::string decode_text(const ElementType& type, uint64_t bits) {
  const std::string name = type.name;
  char text[40];
  if (name[0] == 'u') return std::to_string(bits);
  if (name[0] == 's') {
    const uint32_t shift = 64 - 8 * type.bytes;
    return std::to_string(static_cast<int64_t>(bits << shift) >> shift);
  }
  const double value = name == "f32"    ? f32_from(static_cast<uint32_t>(bits))
                       : name == "f64"  ? std::bit_cast<double>(bits)
                       : name == "f16"  ? f16_to_f32(static_cast<uint16_t>(bits))
                       : name == "bf16" ? bf16_to_f32(static_cast<uint16_t>(bits))
                                        : e4m3_to_f32(static_cast<uint8_t>(bits));
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// A kernel argument: a value, or a buffer whose address is passed.
struct Argument {
  std::string name;
  ElementType type{};
  uint64_t count = 0;  // 0: a value
  bool written = true;
  bool print = false;
  double fill = 0;
  std::vector<double> values;  // the first elements
  uint64_t address = 0;
};

struct Request {
  std::string ptx, kernel;
  std::vector<uint32_t> grid, block, cluster;
  uint32_t smem = 0;
  uint64_t seed = 1;
  std::vector<Argument> arguments;
  std::vector<std::string> checks;
};

double number(const std::string& text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size())
    throw RequestError{"\"" + text + "\" is not a number"};
  return value;
}

// "[name:]type*count[=fill | ?]" or "[name:]type=value".
Argument parse_argument(const std::string& text) {
  Argument a;
  std::string rest = text;
  if (const size_t colon = rest.find(':'); colon != std::string::npos) {
    a.name = rest.substr(0, colon);
    rest = rest.substr(colon + 1);
  }
  if (!rest.empty() && rest.back() == '?') {
    a.written = false;
    rest.pop_back();
  }
  const size_t equals = rest.find('=');
  if (equals != std::string::npos) a.fill = number(rest.substr(equals + 1));
  rest = rest.substr(0, equals);
  const size_t star = rest.find('*');
  a.type = type_named(rest.substr(0, star));
  if (star != std::string::npos) {
    const double count = number(rest.substr(star + 1));
    if (count < 1 || count > 1e10)
      throw RequestError{"argument \"" + text + "\": the count must be at least 1"};
    a.count = static_cast<uint64_t>(count);
  } else if (equals == std::string::npos) {
    throw RequestError{"argument \"" + text + "\" is neither type*count nor type=value"};
  }
  return a;
}

void read_config(const std::string& path, Request* r) {
  std::ifstream stream(path);
  if (!stream) throw RequestError{path + ": cannot be read"};
  try {
    const nlohmann::json j = nlohmann::json::parse(stream);
    const std::string ptx = j.at("ptx");
    if (r->ptx.empty()) r->ptx = (std::filesystem::path(path).parent_path() / ptx).string();
    if (r->kernel.empty()) r->kernel = j.value("kernel", "");
    if (r->grid.empty()) r->grid = j.value("grid", std::vector<uint32_t>());
    if (r->block.empty()) r->block = j.value("block", std::vector<uint32_t>());
    if (r->cluster.empty()) r->cluster = j.value("cluster", std::vector<uint32_t>());
    if (!r->smem) r->smem = j.value("smem", 0u);
    for (const auto& entry : j.value("args", nlohmann::json::array())) {
      Argument a;
      a.name = entry.value("name", "");
      a.type = type_named(entry.at("type"));
      a.count = entry.value("count", uint64_t{0});
      a.fill = entry.contains("value") ? entry.at("value").get<double>() : entry.value("fill", 0.0);
      a.written = entry.value("written", true);
      a.print = entry.value("print", false);
      a.values = entry.value("values", std::vector<double>());
      if (a.count && a.values.size() > a.count)
        throw RequestError{path + ": argument " + a.name + " has more values than count"};
      r->arguments.push_back(std::move(a));
    }
  } catch (const nlohmann::json::exception& error) {
    throw RequestError{path + ": " + error.what()};
  }
}

Dim3 dims(const std::vector<uint32_t>& v, uint32_t absent) {
  return {v.empty() ? absent : v[0], v.size() > 1 ? v[1] : (v.empty() ? absent : 1),
          v.size() > 2 ? v[2] : (v.empty() ? absent : 1)};
}

void parse_check(const std::string& text, Checks* checks) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals),
                    mode = equals == std::string::npos ? "" : text.substr(equals + 1);
  bool known = mode == "fault" || mode == "warn" || mode == "off";
  bool found = false;
  for (const CheckInfo& info : kChecks) {
    if (name != "all" && name != info.name) continue;
    found = true;
    (*checks)[info.check] = mode == "warn"  ? CheckMode::kWarn
                            : mode == "off" ? CheckMode::kOff
                                            : CheckMode::kFault;
  }
  if (!known || !found) throw RequestError{"check \"" + text + "\" is not <check>=fault, =warn or =off"};
}

int run(Request r) {
  std::ifstream stream(r.ptx);
  if (!stream) throw RequestError{r.ptx + ": cannot be read"};
  std::stringstream text;
  text << stream.rdbuf();
  Module module;
  if (Status status = parse_ptx(text.str(), r.ptx, &module); !status.ok())
    throw RequestError{status.message()};
  std::string kernels;
  for (const KernelInfo& k : module.kernels()) kernels += " " + k.name;
  if (r.kernel.empty() && module.kernels().size() == 1) r.kernel = module.kernels()[0].name;
  const KernelInfo* info = module.find_kernel(r.kernel);
  if (!info) throw RequestError{r.ptx + " has no kernel \"" + r.kernel + "\"; it has" + kernels};
  if (info->params.size() != r.arguments.size()) {
    throw RequestError{"kernel " + r.kernel + " takes " + std::to_string(info->params.size()) +
                       " arguments, " + std::to_string(r.arguments.size()) + " are given"};
  }
  Memory memory;
  std::vector<uint8_t> params(info->param_bytes);
  for (size_t i = 0; i < r.arguments.size(); ++i) {
    Argument& a = r.arguments[i];
    if (a.name.empty()) a.name = info->params[i].name;
    uint64_t bits = encode(a.type, a.fill);
    if (a.count) {
      const auto address = memory.allocate(a.count * a.type.bytes);
      if (!address) throw RequestError{"argument " + a.name + ": no memory for it"};
      a.address = bits = *address;
      for (uint64_t k = 0; a.written && k < a.count; ++k) {
        const uint64_t v = encode(a.type, k < a.values.size() ? a.values[k] : a.fill);
        memory.write(a.address + k * a.type.bytes, &v, a.type.bytes);
      }
    }
    const uint32_t bytes = a.count ? 8 : a.type.bytes;
    if (bytes != info->params[i].bytes) {
      throw RequestError{"argument " + a.name + " has " + std::to_string(bytes) + " bytes, kernel " +
                         r.kernel + " takes " + std::to_string(info->params[i].bytes)};
    }
    std::memcpy(params.data() + info->params[i].offset, &bits, bytes);
  }
  LaunchConfig config;
  config.grid = dims(r.grid, 1);
  config.block = dims(r.block, 1);
  if (r.block.empty() && info->reqntid.x) config.block = info->reqntid;
  config.cluster = dims(r.cluster, 0);
  config.dynamic_shared_bytes = r.smem;
  config.seed = r.seed;
  for (const std::string& check : r.checks) parse_check(check, &config.checks);
  const Report report = launch(module, r.kernel, config, params, memory);
  if (!report.output.empty()) std::fputs(report.output.c_str(), stdout);
  for (const Warning& w : report.warnings) {
    std::printf("warning (%s, %llu times): %s\n", kChecks[static_cast<size_t>(w.check)].name,
                static_cast<unsigned long long>(w.count), w.text.c_str());
  }
  for (const Argument& a : r.arguments) {
    if (!a.count || !a.print) continue;
    std::printf("%s[0..%llu] =", a.name.c_str(), static_cast<unsigned long long>(a.count - 1));
    for (uint64_t k = 0; k < a.count; ++k) {
      uint64_t bits = 0;
      const uint64_t at = a.address + k * a.type.bytes;
      memory.read(at, &bits, a.type.bytes);
      std::printf(" %s", memory.unwritten_bytes(at, a.type.bytes) ? "?" : decode_text(a.type, bits).c_str());
    }
    std::printf("\n");
  }
  std::printf("%s: %llu warp instructions, seed %llu: %s\n", r.kernel.c_str(),
              static_cast<unsigned long long>(report.warp_instructions),
              static_cast<unsigned long long>(r.seed),
              report.ok() ? "no fault" : report.fault.text().c_str());
  return report.ok() ? 0 : 1;
}

}  // namespace
}  // namespace mla::emu

int main(int argc, char** argv) {
  CLI::App app("Executes kernels on the emulator, without a driver or a client");
  CLI::App* run =
      app.add_subcommand("run", "Launches one kernel of a PTX file and reports what the checks find");
  app.require_subcommand(1);
  mla::emu::Request request;
  std::string config;
  std::vector<std::string> arguments, print;
  run->add_option("ptx", request.ptx, "the PTX file");
  run->add_option("--config", config, "JSON file with ptx, kernel, grid, block, cluster, smem, args");
  run->add_option("--kernel", request.kernel, "name of the kernel; may be absent when there is one");
  run->add_option("--grid", request.grid, "CTAs: x[,y[,z]]")->delimiter(',')->expected(1, 3);
  run->add_option("--block", request.block, "threads: x[,y[,z]]")->delimiter(',')->expected(1, 3);
  run->add_option("--cluster", request.cluster, "CTAs of a cluster: x[,y[,z]]")
      ->delimiter(',')
      ->expected(1, 3);
  run->add_option("--smem", request.smem, "bytes of dynamic shared memory");
  run->add_option("--seed", request.seed, "of the scheduler");
  run->add_option(
         "--arg", arguments,
         "in order: [name:]type*count[=fill|?] is a buffer (?: unwritten), [name:]type=value a value")
      ->expected(1)
      ->take_all();
  run->add_option("--print", print, "names of buffers to print")->expected(1)->take_all();
  run->add_option("--check", request.checks, "<check>=fault, =warn or =off; all stands for every check")
      ->expected(1)
      ->take_all();
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::string& text : arguments) request.arguments.push_back(mla::emu::parse_argument(text));
    if (!config.empty()) mla::emu::read_config(config, &request);
    for (mla::emu::Argument& a : request.arguments) {
      for (const std::string& name : print) a.print |= a.name == name;
    }
    return mla::emu::run(std::move(request));
  } catch (const mla::emu::RequestError& error) {
    std::fprintf(stderr, "mla-emu: %s\n", error.message.c_str());
    return 2;
  }
}

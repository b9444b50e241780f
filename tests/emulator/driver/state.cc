// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/driver/state.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/emulator/driver/mla_emu.h"

namespace mla::emu::driver {
namespace {

// Device addresses of different devices do not overlap: 2^41 bytes for each.
constexpr uint64_t kFirstAddress = uint64_t{0x2000} << 32;
constexpr uint64_t kAddressesOfDevice = uint64_t{1} << 41;
constexpr size_t kMaxDevices = 16;

constexpr uint64_t kHandleBase = 0xe100'0000'0000;
constexpr uint64_t kHandleStep = 0x10;

bool option_u64(const char* name, uint64_t* value, std::string* error) {
  const char* text = std::getenv(name);
  if (!text || parse_size(text, value)) return true;
  *error = std::string(name) + ": \"" + text + "\" is not a number";
  return false;
}

bool option_flag(const char* name) {
  const char* text = std::getenv(name);
  return text && *text && std::strcmp(text, "0") != 0;
}

// MLA_EMU_CHECKS: words separated by commas. "all" and "none", a check with + or - before it, or
// "check=fault", "check=warn", "check=off"; "all" stands for every check there too.
bool parse_checks(const std::string& text, Checks* checks, std::string* error) {
  std::stringstream stream(text);
  std::string word;
  while (std::getline(stream, word, ',')) {
    std::string name = word;
    CheckMode mode = CheckMode::kFault;
    bool known_mode = true;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      name = word.substr(0, equals);
      const std::string value = word.substr(equals + 1);
      known_mode = value == "fault" || value == "warn" || value == "off";
      mode = value == "warn" ? CheckMode::kWarn : value == "off" ? CheckMode::kOff : CheckMode::kFault;
    } else if (word == "none") {
      name = "all";
      mode = CheckMode::kOff;
    } else if (!word.empty() && (word[0] == '-' || word[0] == '+')) {
      name = word.substr(1);
      mode = word[0] == '-' ? CheckMode::kOff : CheckMode::kFault;
    }
    bool known = false;
    std::string names;
    for (const CheckInfo& info : kChecks) {
      names += std::string(", ") + info.name;
      if (name != "all" && name != info.name) continue;
      known = true;
      (*checks)[info.check] = mode;
    }
    if (!known || !known_mode) {
      *error = "MLA_EMU_CHECKS: \"" + word +
               "\" is not known; known are none, and, with + or - before them or " +
               "=fault, =warn, =off behind, all" + names;
      return false;
    }
  }
  return true;
}

std::string read_options(State* s) {
  const char* devices = std::getenv("MLA_EMU_DEVICES");
  std::string error;
  std::vector<DeviceConfig> configs;
  if (!parse_devices(devices && *devices ? devices : "sm_120:12", &configs, &error)) return error;
  if (configs.size() > kMaxDevices) {
    return "MLA_EMU_DEVICES: " + std::to_string(configs.size()) + " devices, at most " +
           std::to_string(kMaxDevices);
  }
  uint64_t idle = 0;
  if (!option_u64("MLA_EMU_SEED", &s->next_seed, &error) ||
      !option_u64("MLA_EMU_MAX_INSTRUCTIONS", &s->max_warp_instructions, &error) ||
      !option_u64("MLA_EMU_MAX_IDLE", &idle, &error)) {
    return error;
  }
  if (std::getenv("MLA_EMU_MAX_IDLE")) s->max_idle_instructions = idle;
  if (const char* checks = std::getenv("MLA_EMU_CHECKS");
      checks && !parse_checks(checks, &s->checks, &error)) {
    return error;
  }
  if (const char* accumulator = std::getenv("MLA_EMU_MMA_ACCUMULATOR")) {
    const std::string_view word = accumulator;
    if (word != "exact" && word != "narrow") {
      return "MLA_EMU_MMA_ACCUMULATOR: \"" + std::string(word) + "\" is neither exact nor narrow";
    }
    s->mma_accumulator = word == "narrow" ? MmaAccumulator::kNarrow : MmaAccumulator::kExact;
  }
  s->verbose = option_flag("MLA_EMU_VERBOSE");
  s->profile = option_flag("MLA_EMU_PROFILE");
  if (const char* path = std::getenv("MLA_EMU_PTX_PATH")) {
    std::stringstream stream(path);
    std::string folder;
    while (std::getline(stream, folder, ':')) {
      if (!folder.empty()) s->ptx_path.push_back(folder);
    }
  }
  for (const DeviceConfig& config : configs) {
    auto device = std::make_unique<Device>();
    device->ordinal = int(s->devices.size());
    device->config = config;
    device->name =
        "MLA emulated sm_" + std::to_string(config.sm()) + " (" + std::to_string(config.sms) + " SMs)";
    device->memory =
        std::make_unique<Memory>(config.memory_bytes, kFirstAddress + device->ordinal * kAddressesOfDevice);
    s->devices.push_back(std::move(device));
  }
  return {};
}

}  // namespace

State& state() {
  static State* instance = new State;
  return *instance;
}

uint64_t State::add(const std::shared_ptr<Object>& object) {
  object->handle = kHandleBase + kHandleStep * next_handle++;
  objects.emplace(object->handle, object);
  return object->handle;
}

void report(const std::string& text) {
  state().report = text;
  std::fprintf(stderr, "mla-emu: %s\n", text.c_str());
}

CUresult initialize() {
  State& s = state();
  if (s.initialized) return CUDA_SUCCESS;
  if (s.init_failed) return s.init_result;
  const std::string error = read_options(&s);
  if (!error.empty()) {
    report(error);
    s.devices.clear();
  }
  s.init_result = !error.empty()      ? CUDA_ERROR_INVALID_VALUE
                  : s.devices.empty() ? CUDA_ERROR_NO_DEVICE
                                      : CUDA_SUCCESS;
  s.initialized = s.init_result == CUDA_SUCCESS;
  s.init_failed = !s.initialized;
  return s.init_result;
}

CUresult check_initialized() { return state().initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult get_device(CUdevice ordinal, Device** device) {
  if (const CUresult error = check_initialized()) return error;
  if (ordinal < 0 || size_t(ordinal) >= state().devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = state().devices[size_t(ordinal)].get();
  return CUDA_SUCCESS;
}

std::vector<std::shared_ptr<Context>>& context_stack() {
  thread_local std::vector<std::shared_ptr<Context>> stack;
  return stack;
}

CUresult current_context(std::shared_ptr<Context>* context) {
  if (const CUresult error = check_initialized()) return error;
  const auto& stack = context_stack();
  if (stack.empty() || !stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.back()->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = stack.back();
  return stack.back()->device->fault;
}

std::shared_ptr<Context> make_context(Device* device, unsigned flags, bool primary) {
  State& s = state();
  auto context = std::make_shared<Context>();
  context->device = device;
  context->flags = flags;
  context->primary = primary;
  context->id = s.next_id++;
  s.add(context);
  for (std::shared_ptr<Stream>* stream : {&context->legacy, &context->per_thread}) {
    *stream = std::make_shared<Stream>();
    (*stream)->context = context;
    (*stream)->id = s.next_id++;
  }
  context->legacy->legacy = true;
  return context;
}

void destroy_context(Context& context) {
  State& s = state();
  for (const uint64_t address : context.allocations) context.device->memory->free(address);
  for (const uint64_t handle : std::set<uint64_t>(context.objects)) {
    if (const auto module = find<ModuleObject>(handle)) unload_module(*module);
  }
  for (const uint64_t handle : context.objects) s.objects.erase(handle);
  for (auto entry = s.host_allocations.begin(); entry != s.host_allocations.end();) {
    if (entry->second.context.get() != &context) {
      ++entry;
      continue;
    }
    void* pointer = reinterpret_cast<void*>(entry->first);
    for (const auto& device : s.devices) device->memory->unmap_host(pointer);
    if (entry->second.owned) std::free(pointer);
    entry = s.host_allocations.erase(entry);
  }
  context.allocations.clear();
  context.objects.clear();
  context.library_modules.clear();
  context.legacy = context.per_thread = nullptr;
  context.alive = false;
  s.objects.erase(context.handle);
}

CUresult get_stream(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (const CUresult error = check_initialized()) return error;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    std::shared_ptr<Context> context;
    if (const CUresult error = current_context(&context)) return error;
    *stream = handle == CU_STREAM_PER_THREAD ? context->per_thread : context->legacy;
    return CUDA_SUCCESS;
  }
  *stream = find<Stream>(handle);
  if (!*stream) return CUDA_ERROR_INVALID_HANDLE;
  return (*stream)->context->device->fault;
}

// ---- capture rules -----------------------------------------------------------------------------

CUstreamCaptureMode& thread_capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

void invalidate(Capture& capture) { capture.invalidated = true; }

CUresult check_unsafe_call() {
  const CUstreamCaptureMode mode = thread_capture_mode();
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : state().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbidden =
        own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
            : mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbidden) continue;
    invalidate(*capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult check_legacy(const Stream& stream, bool ends_capture) {
  if (!stream.legacy) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : state().captures) {
    for (const Stream* member : capture->streams) {
      if (member->context == stream.context && member->blocking()) {
        if (ends_capture) invalidate(*capture);
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
    }
  }
  return result;
}

CUresult submit(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Operation>& operation) {
  if (!stream->capture) {
    if (const CUresult error = check_legacy(*stream)) return error;
    return operation->run(*stream->context);
  }
  if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto node = std::make_shared<Node>();
  node->type = operation->type;
  node->operation = operation;
  node->dependencies = stream->capture_tail;
  state().add(node);
  stream->capture->graph->nodes.push_back(node);
  stream->capture_tail = {node};
  return CUDA_SUCCESS;
}

CUresult submit_now(Context& context, Operation& operation) {
  if (const CUresult error = check_legacy(*context.legacy)) return error;
  return operation.run(context);
}

}  // namespace mla::emu::driver

// ---- exports of the emulator -------------------------------------------------------------------

using namespace mla::emu::driver;

extern "C" {

MLA_EMU_EXPORT size_t mlaEmuLastReport(char* buffer, size_t size) {
  const Lock lock(state().mutex);
  const std::string& text = state().report;
  if (buffer && size) {
    const size_t copied = std::min(size - 1, text.size());
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  }
  return text.size() + 1;
}

MLA_EMU_EXPORT void mlaEmuClearReport(void) {
  const Lock lock(state().mutex);
  state().report.clear();
}

MLA_EMU_EXPORT void mlaEmuClearFault(void) {
  const Lock lock(state().mutex);
  for (const auto& device : state().devices) device->fault = CUDA_SUCCESS;
}

MLA_EMU_EXPORT uint64_t mlaEmuKernelsExecuted(void) {
  const Lock lock(state().mutex);
  return state().launches;
}

MLA_EMU_EXPORT uint64_t mlaEmuKernelExecutions(const char* entry) {
  const Lock lock(state().mutex);
  const auto found = state().launches_of.find(entry ? entry : "");
  return found == state().launches_of.end() ? 0 : found->second;
}

MLA_EMU_EXPORT void mlaEmuStatistics(uint64_t* warp_instructions, uint64_t* lane_instructions,
                                     double* seconds) {
  const Lock lock(state().mutex);
  if (warp_instructions) *warp_instructions = state().warp_instructions;
  if (lane_instructions) *lane_instructions = state().lane_instructions;
  if (seconds) *seconds = state().seconds;
}

MLA_EMU_EXPORT uint64_t mlaEmuWarnings(void) {
  const Lock lock(state().mutex);
  return state().warnings;
}

MLA_EMU_EXPORT void mlaEmuSetSeed(uint64_t seed) {
  const Lock lock(state().mutex);
  state().next_seed = seed;
}

MLA_EMU_EXPORT uint64_t mlaEmuNextSeed(void) {
  const Lock lock(state().mutex);
  return state().next_seed;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// Images, libraries, modules, kernels and functions.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "manifest/sha256.h"
#include "tests/emulator/driver/image.h"
#include "tests/emulator/driver/state.h"

namespace mla::emu::driver {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kFatbinWrapperMagic = 0x466243b1;

bool read_file(const std::string& path, std::string* text) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  std::ostringstream content;
  content << stream.rdbuf();
  *text = std::move(content).str();
  return true;
}

// The PTX of a cubin: <sha256 of the cubin>.ptx in a folder of MLA_EMU_PTX_PATH.
CUresult find_ptx(const std::string& sha256, Image* image) {
  std::string looked_for;
  for (const std::string& folder : state().ptx_path) {
    image->name = folder + "/" + sha256 + ".ptx";
    if (read_file(image->name, &image->ptx)) return CUDA_SUCCESS;
    looked_for += (looked_for.empty() ? "" : ", ") + image->name;
  }
  report("no PTX for the cubin with sha256 " + sha256 + ": " +
         (looked_for.empty()
              ? "MLA_EMU_PTX_PATH is not set (folders with <sha256 of a cubin>.ptx, separated by colons)"
              : "looked for " + looked_for));
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

// Every kernel of the cubin must be in the PTX: else it belongs to another cubin.
CUresult check_ptx_matches(const Image& image) {
  for (const cubin::Kernel& kernel : image.cubin->kernels) {
    const KernelInfo* info = image.module.find_kernel(kernel.symbol);
    if (!info) {
      report(image.name + ": has no kernel " + kernel.symbol + ", which the cubin has");
      return CUDA_ERROR_INVALID_IMAGE;
    }
  }
  if (image.module.sm() != image.sm || (image.suffix && image.module.target_suffix() != image.suffix)) {
    report(image.name + ": .target " + image.module.target() + ", but the cubin is for sm_" +
           std::to_string(image.sm) + (image.suffix ? std::string(1, image.suffix) : ""));
    return CUDA_ERROR_INVALID_IMAGE;
  }
  return CUDA_SUCCESS;
}

std::string target_text(const Image& image) {
  return "sm_" + std::to_string(image.sm) + (image.suffix ? std::string(1, image.suffix) : "");
}

// PTX whose every kernel has instructions beyond the engine is refused here, as the real driver
// refuses what it cannot compile; of other modules, the kernels in question are refused at launch.
CUresult parse(Image* image) {
  if (const Status status = parse_ptx(image->ptx, image->name, &image->module); !status.ok()) {
    report(status.message());
    return CUDA_ERROR_INVALID_PTX;
  }
  constexpr size_t kShown = 16;
  std::string reason;
  size_t refused = 0;
  for (const KernelInfo& kernel : image->module.kernels()) {
    if (kernel.unsupported.empty()) return CUDA_SUCCESS;
    if (++refused <= kShown)
      reason +=
          (reason.empty() ? "kernel " : "\n  kernel ") + kernel.name + ": " + kernel.unsupported.front();
  }
  if (refused > kShown) reason += "\n  and " + std::to_string(refused - kShown) + " more kernels";
  if (reason.empty()) return CUDA_SUCCESS;
  report(reason);
  return CUDA_ERROR_INVALID_PTX;
}

// Sets *out unless the PTX is missing.
CUresult load_cubin(const void* code, uint64_t bytes, std::shared_ptr<Image>* out) {
  const std::span<const std::byte> content(static_cast<const std::byte*>(code), bytes);
  cubin::Info info;
  auto image = std::make_shared<Image>();
  if (const Status status = cubin::read(content, "cubin image", &info); !status.ok()) {
    report(status.message());
    *out = image;
    return CUDA_ERROR_INVALID_IMAGE;
  }
  image->name = "cubin image";
  image->sm = info.sm;
  const char last = info.arch.empty() ? '\0' : info.arch.back();
  image->suffix = last == 'a' || last == 'f' ? last : 0;
  image->cubin = std::move(info);
  if (const CUresult error = check_runs_on_some_device(*image)) {
    *out = image;
    return error;
  }
  if (const CUresult error = find_ptx(sha256_hex(content), image.get())) return error;
  *out = image;
  if (const CUresult error = parse(image.get())) return error;
  return check_ptx_matches(*image);
}

// The PTX version that a text asks for, as 10 * major + minor; 0 if it says none.
uint32_t version_of(const std::string& text) {
  size_t at = text.find(".version");
  if (at == std::string::npos) return 0;
  at = text.find_first_not_of(" \t\r\n", at + std::strlen(".version"));
  if (at == std::string::npos) return 0;
  const char* const end = text.data() + text.size();
  uint16_t major = 0, minor = 0;
  auto result = std::from_chars(text.data() + at, end, major);
  if (result.ec != std::errc() || result.ptr == end || *result.ptr != '.') return 0;
  result = std::from_chars(result.ptr + 1, end, minor);
  if (result.ec == std::errc::invalid_argument) return 0;
  if (result.ec != std::errc() || minor > 9) return 10 * major;  // the parser says what is wrong with it
  return 10u * major + minor;
}

CUresult load_ptx(const char* text, std::shared_ptr<Image>* out) {
  auto image = std::make_shared<Image>();
  *out = image;
  image->name = "PTX image";
  image->ptx = text;
  const uint32_t version = version_of(image->ptx);
  if (!version) {
    report("the image is neither an ELF file nor PTX");
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (version > kPtxVersion) {
    report("PTX image: .version " + std::to_string(version / 10) + "." + std::to_string(version % 10) +
           ", but the driver knows up to " + std::to_string(kPtxVersion / 10) + "." +
           std::to_string(kPtxVersion % 10));
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  if (const CUresult error = parse(image.get())) return error;
  image->sm = image->module.sm();
  image->suffix = image->module.target_suffix();
  return CUDA_SUCCESS;
}

}  // namespace

const cubin::Kernel* Image::cubin_kernel(const std::string& kernel) const {
  if (!cubin) return nullptr;
  for (const cubin::Kernel& entry : cubin->kernels) {
    if (entry.symbol == kernel) return &entry;
  }
  return nullptr;
}

bool Image::runs_on(const Device& device) const {
  const uint32_t sm_of_device = uint32_t(device.config.sm());
  return cubin ? cubin_runs_on(sm, suffix, sm_of_device) : ptx_runs_on(sm, suffix, sm_of_device);
}

void unload_module(ModuleObject& module) {
  if (module.unloaded) return;
  module.unloaded = true;
  for (const auto& [name, function] : module.functions) {
    module.context->objects.erase(function->handle);
    state().objects.erase(function->handle);
  }
  Memory& memory = *module.context->device->memory;
  for (const auto& [name, address] : module.constants) memory.free(address);
  unload_globals(module.module, memory);
  module.context->objects.erase(module.handle);
  state().objects.erase(module.handle);
  module.functions.clear();
}

CUresult check_runs_on_some_device(const Image& image) {
  const auto& devices = state().devices;
  for (const auto& device : devices) {
    if (image.runs_on(*device)) return CUDA_SUCCESS;
  }
  report(image.name + ": code for " + target_text(image) + ", which no emulated device (" +
         devices.front()->name + (devices.size() > 1 ? ", ..." : "") + ") runs");
  return image.cubin ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_PTX;
}

CUresult load_image(const void* code, std::shared_ptr<Image>* image) {
  if (!code) return CUDA_ERROR_INVALID_VALUE;
  uint32_t magic = 0;
  // A text of fewer than four characters is not PTX either: read byte by byte up to its end.
  const char* bytes = static_cast<const char*>(code);
  for (size_t i = 0; i < sizeof(magic); ++i) {
    magic |= uint32_t(uint8_t(bytes[i])) << (8 * i);
    if (!bytes[i]) break;
  }
  if (magic == kFatbinMagic || magic == kFatbinWrapperMagic) {
    report("fat binaries are beyond the emulated driver: give it the cubin or the PTX");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  if (std::memcmp(&magic, "\177ELF", sizeof(magic)) == 0) {
    const uint64_t extent = elf_extent(code);
    if (extent) return load_cubin(code, extent, image);
    report("the image is an ELF file, but not a 64-bit little-endian one");
    *image = std::make_shared<Image>();
    return CUDA_ERROR_INVALID_IMAGE;
  }
  return load_ptx(bytes, image);
}

CUresult instantiate(const std::shared_ptr<Image>& image, const std::shared_ptr<Context>& context,
                     std::shared_ptr<ModuleObject>* out) {
  if (!image->runs_on(*context->device)) {
    report(image->name + ": code for sm_" + std::to_string(image->sm) +
           (image->suffix ? std::string(1, image->suffix) : "") + " does not run on " +
           context->device->name);
    return image->cubin ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_PTX;
  }
  auto module = std::make_shared<ModuleObject>();
  module->context = context;
  module->image = image;
  // Variables have one address per parsed module and memory, but every context has its own.
  if (!image->module_taken) {
    module->module = image->module;
    image->module_taken = true;
  } else if (const Status status = parse_ptx(image->ptx, image->name, &module->module); !status.ok()) {
    report(status.message());
    return CUDA_ERROR_INVALID_PTX;
  }
  if (const Status status = load_globals(module->module, *context->device->memory); !status.ok()) {
    report(status.message());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->objects.insert(state().add(module));
  *out = module;
  return CUDA_SUCCESS;
}

CUresult library_module(Library& library, const std::shared_ptr<Context>& context,
                        std::shared_ptr<ModuleObject>* module) {
  if (library.refused) return library.refused;
  std::shared_ptr<ModuleObject>& slot = context->library_modules[&library];
  if (!slot) {
    const CUresult error = instantiate(library.image, context, &slot);
    if (error) {
      context->library_modules.erase(&library);
      return error;
    }
    slot->library = &library;
  }
  *module = slot;
  return CUDA_SUCCESS;
}

CUresult module_function(const std::shared_ptr<ModuleObject>& module, const std::string& name,
                         std::shared_ptr<Function>* out) {
  if (!module->module.find_kernel(name)) return CUDA_ERROR_NOT_FOUND;
  std::shared_ptr<Function>& function = module->functions[name];
  if (!function) {
    function = std::make_shared<Function>();
    function->module = module;
    function->name = name;
    if (module->library) {
      for (const auto& kernel : module->library->kernels) {
        if (kernel->name == name) function->kernel = kernel;
      }
    }
    module->context->objects.insert(state().add(function));
  }
  *out = function;
  return CUDA_SUCCESS;
}

CUresult get_function(CUfunction handle, const std::shared_ptr<Context>& context,
                      std::shared_ptr<Function>* function) {
  if ((*function = find<Function>(handle))) return CUDA_SUCCESS;
  const std::shared_ptr<Kernel> kernel = find<Kernel>(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<ModuleObject> module;
  if (const CUresult error = library_module(*kernel->library, context, &module)) return error;
  return module_function(module, kernel->name, function);
}

namespace {

CUresult load_library(CUlibrary* library, const void* code) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Library>();
  // As with the real driver, what is wrong with the code, or that no device runs it, is said by the first
  // call that needs a kernel; that the PTX of a cubin is missing, at once.
  made->refused = load_image(code, &made->image);
  if (!made->image) return made->refused;
  if (!made->refused) made->refused = check_runs_on_some_device(*made->image);
  if (!made->refused) {
    for (const KernelInfo& info : made->image->module.kernels()) {
      auto kernel = std::make_shared<Kernel>();
      kernel->library = made.get();
      kernel->name = info.name;
      made->kernels.push_back(kernel);
      state().add(kernel);
    }
  }
  state().add(made);
  *library = to_handle<CUlibrary>(made);
  return CUDA_SUCCESS;
}

CUresult load_module(CUmodule* module, const void* code) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Image> image;
  if (const CUresult error = load_image(code, &image)) return error;
  std::shared_ptr<ModuleObject> made;
  if (const CUresult error = instantiate(image, context, &made)) return error;
  *module = to_handle<CUmodule>(made);
  return CUDA_SUCCESS;
}

// Address and size of a variable. The engine keeps .const variables out of device memory; a client
// that asks for one gets a copy with its initial value (reading is all that a client does with it).
CUresult get_global(ModuleObject& module, const char* name, CUdeviceptr* address, size_t* bytes) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  const GlobalInfo* info = module.module.find_global(name);
  if (!info) return CUDA_ERROR_NOT_FOUND;
  Memory& memory = *module.context->device->memory;
  std::optional<uint64_t> found = global_address(module.module, memory, name);
  if (!found) {
    const auto constant = module.constants.find(name);
    if (constant != module.constants.end()) {
      found = constant->second;
    } else {
      found = memory.allocate(info->bytes);
      if (!found) return CUDA_ERROR_OUT_OF_MEMORY;
      memory.write(*found, info->initial.data(), info->initial.size());
      module.constants[name] = *found;
    }
  }
  if (address) *address = *found;
  if (bytes) *bytes = info->bytes;
  return CUDA_SUCCESS;
}

CUresult param_info(const Module& module, const std::string& kernel, size_t index, size_t* offset,
                    size_t* size) {
  const KernelInfo* info = module.find_kernel(kernel);
  if (!offset || !info || index >= info->params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = info->params[index].offset;
  if (size) *size = info->params[index].bytes;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace mla::emu::driver

using namespace mla::emu::driver;

extern "C" {

// ---- libraries and kernels ---------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                                                  unsigned int, CUlibraryOption*, void**, unsigned int) {
  return load_library(library, code);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option*,
                                                      void**, unsigned int, CUlibraryOption*, void**,
                                                      unsigned int) {
  if (!fileName) return CUDA_ERROR_INVALID_VALUE;
  std::string content;
  if (!read_file(fileName, &content)) return CUDA_ERROR_FILE_NOT_FOUND;
  return load_library(library, content.c_str());
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Library> found = find<Library>(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::shared_ptr<Context>> contexts;
  for (const auto& [handle, object] : state().objects) {
    if (auto context = std::dynamic_pointer_cast<Context>(object)) contexts.push_back(std::move(context));
  }
  for (const auto& context : contexts) {
    const auto module = context->library_modules.find(found.get());
    if (module == context->library_modules.end()) continue;
    unload_module(*module->second);
    context->library_modules.erase(module);
  }
  for (const auto& kernel : found->kernels) state().objects.erase(kernel->handle);
  state().objects.erase(found->handle);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Library> found = find<Library>(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
  if (found->refused) return found->refused;
  for (const auto& kernel : found->kernels) {
    if (kernel->name != name) continue;
    *pKernel = to_handle<CUkernel>(kernel);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Library> found = find<Library>(lib);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = unsigned(found->kernels.size());
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                                          CUlibrary lib) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Library> found = find<Library>(lib);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!kernels) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < found->kernels.size() && i < numKernels; ++i) {
    kernels[i] = to_handle<CUkernel>(found->kernels[i]);
  }
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<Library> found = find<Library>(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!pMod) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<ModuleObject> module;
  if (const CUresult error = library_module(*found, context, &module)) return error;
  *pMod = to_handle<CUmodule>(module);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                                                   const char* name) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<Library> found = find<Library>(library);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<ModuleObject> module;
  if (const CUresult error = library_module(*found, context, &module)) return error;
  return get_global(*module, name, dptr, bytes);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  if (!find<Kernel>(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!pFunc) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = get_function(reinterpret_cast<CUfunction>(kernel), context, &function))
    return error;
  *pFunc = to_handle<CUfunction>(function);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Kernel> found = find<Kernel>(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!pLib) return CUDA_ERROR_INVALID_VALUE;
  *pLib = reinterpret_cast<CUlibrary>(found->library->handle);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel hfunc) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Kernel> found = find<Kernel>(hfunc);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = found->name.c_str();
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset,
                                                     size_t* size) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<Kernel> found = find<Kernel>(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  return param_info(found->library->image->module, found->name, index, offset, size);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                                                     CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  const std::shared_ptr<Kernel> found = find<Kernel>(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  const Image& image = *found->library->image;
  if (!image.runs_on(*device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  CUresult result = CUDA_SUCCESS;
  const int value = get_attribute(attrib, image, found->name, found->attributes[dev], nullptr, &result);
  if (!result) *pi = value;
  return result;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                                     CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  const std::shared_ptr<Kernel> found = find<Kernel>(kernel);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  const Image& image = *found->library->image;
  if (!image.runs_on(*device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  return set_attribute(attrib, val, image, found->name, *device, &found->attributes[dev]);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice dev) {
  const Lock lock(state().mutex);
  Device* device = nullptr;
  if (const CUresult error = get_device(dev, &device)) return error;
  return find<Kernel>(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// ---- modules and functions ---------------------------------------------------------------------

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module(module, image);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int,
                                                   CUjit_option*, void**) {
  return load_module(module, image);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load_module(module, image);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* fname) {
  if (!fname) return CUDA_ERROR_INVALID_VALUE;
  std::string content;
  if (!read_file(fname, &content)) return CUDA_ERROR_FILE_NOT_FOUND;
  return load_module(module, content.c_str());
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule hmod) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<ModuleObject> module = find<ModuleObject>(hmod);
  if (!module || module->library) return CUDA_ERROR_INVALID_HANDLE;
  unload_module(*module);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<ModuleObject> module = find<ModuleObject>(hmod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!hfunc || !name) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = module_function(module, name, &function)) return error;
  *hfunc = to_handle<CUfunction>(function);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<ModuleObject> module = find<ModuleObject>(mod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = unsigned(module->module.kernels().size());
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod,
                                                     const char* name) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  const std::shared_ptr<ModuleObject> module = find<ModuleObject>(hmod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  return get_global(*module, name, dptr, bytes);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Function> function = find<Function>(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!hmod) return CUDA_ERROR_INVALID_VALUE;
  *hmod = reinterpret_cast<CUmodule>(function->module->handle);
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction hfunc) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  const std::shared_ptr<Function> function = find<Function>(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncGetParamInfo(CUfunction func, size_t index, size_t* offset,
                                                   size_t* size) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  std::shared_ptr<Function> function;
  if (const CUresult error = get_function(func, context, &function)) return error;
  return param_info(function->module->module, function->name, index, offset, size);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  std::shared_ptr<Function> function;
  if (const CUresult error = get_function(hfunc, context, &function)) return error;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  const FunctionAttributes* of_kernel =
      function->kernel ? &function->kernel->attributes[function->module->context->device->ordinal] : nullptr;
  CUresult result = CUDA_SUCCESS;
  const int value = get_attribute(attrib, *function->module->image, function->name, function->attributes,
                                  of_kernel, &result);
  if (!result) *pi = value;
  return result;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  std::shared_ptr<Function> function;
  if (const CUresult error = get_function(hfunc, context, &function)) return error;
  return set_attribute(attrib, value, *function->module->image, function->name,
                       *function->module->context->device, &function->attributes);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  std::shared_ptr<Function> function;
  return get_function(hfunc, context, &function);
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state_out, CUfunction function) {
  const Lock lock(state().mutex);
  if (const CUresult error = check_initialized()) return error;
  if (!find<Function>(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (!state_out) return CUDA_ERROR_INVALID_VALUE;
  *state_out = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

MLA_EMU_EXPORT CUresult CUDAAPI cuFuncLoad(CUfunction function) {
  const Lock lock(state().mutex);
  std::shared_ptr<Context> context;
  if (const CUresult error = current_context(&context)) return error;
  std::shared_ptr<Function> found;
  return get_function(function, context, &found);
}

}  // extern "C"

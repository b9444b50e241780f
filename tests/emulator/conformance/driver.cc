// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/conformance/driver.h"

#include <dlfcn.h>

namespace mla::conformance {

#define MLA_CONFORMANCE_TEXT(x) MLA_CONFORMANCE_TEXT2(x)
#define MLA_CONFORMANCE_TEXT2(x) #x

std::string Driver::load(const std::string& path) {
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) return dlerror();
    // cuda.h's macros turn each name into that of the version declared.
#define MLA_CONFORMANCE_BIND(name)                                                                  \
  this->name = reinterpret_cast<decltype(this->name)>(dlsym(library_, MLA_CONFORMANCE_TEXT(name))); \
  if (!this->name) return path + " has no " + MLA_CONFORMANCE_TEXT(name);
  MLA_CONFORMANCE_FUNCTIONS(MLA_CONFORMANCE_BIND)
#undef MLA_CONFORMANCE_BIND
  return {};
}

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return std::to_string(int(result)) + (name ? std::string(" ") + name : "");
}

std::string Driver::emulator_report() const {
  const auto last_report = reinterpret_cast<size_t (*)(char*, size_t)>(dlsym(library_, "mlaEmuLastReport"));
  if (!last_report) return {};
  std::string text(last_report(nullptr, 0), '\0');
  last_report(text.data(), text.size());
  if (!text.empty()) text.pop_back();
  return text;
}

void Driver::clear_fault() const {
  const auto clear = reinterpret_cast<void (*)()>(dlsym(library_, "mlaEmuClearFault"));
  if (clear) clear();
}

void Driver::set_seed(uint64_t seed) const {
  const auto set = reinterpret_cast<void (*)(uint64_t)>(dlsym(library_, "mlaEmuSetSeed"));
  if (set) set(seed);
}

}  // namespace mla::conformance

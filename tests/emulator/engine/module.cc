// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/engine/machine.h"
#include "tests/emulator/engine/ptx.h"

namespace mla::emu {

const std::string& Module::name() const { return impl_->name; }
const std::string& Module::target() const { return impl_->target; }
uint32_t Module::sm() const { return impl_->sm; }
char Module::target_suffix() const { return impl_->suffix; }
uint32_t Module::ptx_version() const { return impl_->version; }

std::vector<KernelInfo> Module::kernels() const {
  std::vector<KernelInfo> result;
  for (const auto& f : impl_->functions) {
    if (f->entry && f->defined) result.push_back(f->info);
  }
  return result;
}

const KernelInfo* Module::find_kernel(std::string_view name) const {
  auto found = impl_->function_names.find(std::string(name));
  return found != impl_->function_names.end() && found->second->entry && found->second->defined
             ? &found->second->info
             : nullptr;
}

std::vector<GlobalInfo> Module::globals() const { return impl_->globals; }

const GlobalInfo* Module::find_global(std::string_view name) const {
  for (const GlobalInfo& g : impl_->globals) {
    if (g.name == name) return &g;
  }
  return nullptr;
}

namespace {

constexpr uint64_t kMostInstructions =
    1 << 24;  // of a module, each function once for each kernel that calls it

Status parse(std::string_view text, std::string_view name, Module* module) {
  auto impl = std::make_shared<ModuleImpl>();
  if (Status status = read_ptx(text, name, impl.get()); !status.ok()) return status;
  uint64_t instructions = 0;
  for (auto& f : impl->functions) {
    if (!f->entry || !f->defined) continue;
    if (instructions > kMostInstructions) {
      f->info.unsupported = {impl->name + ":" + std::to_string(f->line) + ": kernel " + f->name +
                             " is not read: those before it have more than " +
                             std::to_string(kMostInstructions) + " instructions, called functions included"};
      continue;
    }
    auto program = decode(*impl, *f);
    instructions += program->code.size();
    f->info.unsupported = program->unsupported;
    f->info.local_bytes = program->local_bytes;
    impl->programs[f->name] = std::move(program);
  }
  module->impl_ = std::move(impl);
  return Status();
}

}  // namespace

Status parse_ptx(std::string_view text, std::string_view name, Module* module) {
  try {
    return parse(text, name, module);
  } catch (const std::bad_alloc&) {
    return Status::invalid(std::string(name) + ": not enough memory to read it");
  }
}

Status load_globals(const Module& module, Memory& memory) {
  const ModuleImpl& impl = *module.impl_;
  auto [entry, added] = memory.impl().globals.try_emplace(&impl);
  if (!added) return Status();
  auto& addresses = entry->second;
  for (const GlobalInfo& g : impl.globals) {
    if (g.constant || g.bytes == 0) continue;
    auto address = memory.allocate(g.bytes, g.alignment);
    if (!address)
      return Status::invalid("no device memory for the variable " + g.name + " of module " + impl.name);
    addresses[g.name] = *address;
    memory.write(*address, g.initial.data(), g.bytes);
  }
  for (const auto& r : impl.relocations) {
    const GlobalInfo& target = impl.globals[r.global];
    if (target.constant) continue;
    uint64_t value = static_cast<uint64_t>(r.addend);
    if (r.symbol->space == Space::kGlobal) {
      const auto address = addresses.find(impl.globals[r.symbol->offset].name);
      if (address != addresses.end()) value += address->second;  // without memory of its own: 0
    } else {
      value += r.symbol->offset + kConstWindow;
    }
    memory.write(addresses.at(target.name) + r.offset, &value, 8);
  }
  return Status();
}

std::optional<uint64_t> global_address(const Module& module, const Memory& memory, std::string_view name) {
  auto found = memory.impl().globals.find(module.impl_.get());
  if (found == memory.impl().globals.end()) return std::nullopt;
  auto address = found->second.find(std::string(name));
  if (address == found->second.end()) return std::nullopt;
  return address->second;
}

void unload_globals(const Module& module, Memory& memory) {
  auto& globals = memory.impl().globals;
  auto found = globals.find(module.impl_.get());
  if (found == globals.end()) return;
  auto addresses = std::move(found->second);
  globals.erase(found);
  for (const auto& [name, address] : addresses) memory.free(address);
}

}  // namespace mla::emu

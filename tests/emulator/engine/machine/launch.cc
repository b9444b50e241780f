// SPDX-License-Identifier: Apache-2.0
//
// A launch: what is checked before, and the machine that runs it.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "tests/emulator/engine/machine.h"
#include "tests/emulator/engine/text.h"

namespace mla::emu {

Report launch(const Module& module, std::string_view kernel, const LaunchConfig& config,
              const std::vector<uint8_t>& params, Memory& memory) {
  Report report;
  report.seed = config.seed;
  auto start = std::chrono::steady_clock::now();
  auto refuse = [&](FaultKind kind, std::string message) {
    report.fault.kind = kind;
    report.fault.kernel = std::string(kernel);
    report.fault.message = std::move(message);
    return report;
  };
  if (!module.impl_) return refuse(FaultKind::kLaunch, "the module is empty");
  ModuleImpl& impl = *module.impl_;
  auto found = impl.function_names.find(std::string(kernel));
  if (found == impl.function_names.end() || !found->second->entry || !found->second->defined) {
    return refuse(FaultKind::kLaunch, "module " + impl.name + " has no kernel '" + std::string(kernel) + "'");
  }
  const Function& f = *found->second;
  const KernelInfo& info = f.info;
  auto& program = impl.programs[f.name];
  if (!program && !info.unsupported.empty()) return refuse(FaultKind::kUnsupported, info.unsupported[0]);
  if (!program) program = decode(impl, f);
  if (!program->unsupported.empty()) {
    std::string more =
        program->unsupported.size() > 1 ? text_of(" (and %zu more)", program->unsupported.size() - 1) : "";
    return refuse(FaultKind::kUnsupported, program->unsupported[0] + more);
  }
  uint64_t threads = config.block.count();
  if (threads == 0 || threads > 1024)
    return refuse(FaultKind::kLaunch,
                  text_of("block of %llu threads: 1 to 1024 are allowed", static_cast<ull>(threads)));
  if (config.grid.count() == 0) return refuse(FaultKind::kLaunch, "the grid is empty");
  auto same = [](const Dim3& a, const Dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; };
  if (info.reqntid.x && !same(info.reqntid, config.block)) {
    return refuse(FaultKind::kLaunch,
                  text_of("block (%u, %u, %u): the kernel requires (%u, %u, %u)", config.block.x,
                          config.block.y, config.block.z, info.reqntid.x, info.reqntid.y, info.reqntid.z));
  }
  if (info.maxntid.x && threads > info.maxntid.count()) {
    return refuse(FaultKind::kLaunch,
                  text_of("block of %llu threads: the kernel allows %llu", static_cast<ull>(threads),
                          static_cast<ull>(info.maxntid.count())));
  }
  Dim3 cluster = info.cluster.x ? info.cluster : Dim3{1, 1, 1};
  if (config.cluster.x) {
    if (info.cluster.x && !same(info.cluster, config.cluster)) {
      return refuse(FaultKind::kLaunch, text_of("cluster (%u, %u, %u): the kernel requires (%u, %u, %u)",
                                                config.cluster.x, config.cluster.y, config.cluster.z,
                                                info.cluster.x, info.cluster.y, info.cluster.z));
    }
    cluster = config.cluster;
  }
  if (cluster.count() > 16)
    return refuse(FaultKind::kLaunch,
                  text_of("cluster of %llu CTAs: at most 16 are allowed", static_cast<ull>(cluster.count())));
  if (config.grid.x % cluster.x || config.grid.y % cluster.y || config.grid.z % cluster.z) {
    return refuse(FaultKind::kLaunch,
                  text_of("grid (%u, %u, %u) is not a multiple of the cluster (%u, %u, %u)", config.grid.x,
                          config.grid.y, config.grid.z, cluster.x, cluster.y, cluster.z));
  }
  if (params.size() != info.param_bytes) {
    return refuse(FaultKind::kLaunch, text_of("parameter buffer of %zu bytes: the kernel takes %u",
                                              params.size(), info.param_bytes));
  }
  uint64_t shared = uint64_t{program->static_shared} + config.dynamic_shared_bytes;
  if (shared > config.max_shared_bytes) {
    return refuse(FaultKind::kLaunch,
                  text_of("%u bytes of static and %u of dynamic shared memory: the limit is %u",
                          program->static_shared, config.dynamic_shared_bytes, config.max_shared_bytes));
  }
  if (Status status = load_globals(module, memory); !status.ok())
    return refuse(FaultKind::kLaunch, status.message());

  static std::atomic<uint32_t> serial{0};
  Machine m;
  m.program = program.get();
  m.config = &config;
  m.memory = &memory.impl();
  m.params = &params;
  m.report = &report;
  m.rng = Rng(config.seed);
  m.grid = config.grid;
  m.block = config.block;
  m.cluster_shape = cluster;
  m.explicit_cluster = info.cluster.x || config.cluster.count() > 1;
  m.cluster_size = static_cast<uint32_t>(cluster.count());
  m.warps_per_cta = static_cast<uint32_t>((threads + 31) / 32);
  m.slots = 32;
  m.agents_per_cta = m.warps_per_cta + m.slots;
  m.agents = (m.cluster_size * m.agents_per_cta + 15) / 16 * 16;
  m.cell_bytes = (static_cast<uint32_t>(sizeof(Cell)) + 6 * m.warps_per_cta + 7) / 8 * 8;
  do {
    m.launch_serial = ++serial;
  } while (m.launch_serial == 0);
  m.smem_total = program->dynamic_base + config.dynamic_shared_bytes;
  const Checks& checks = config.checks;
  m.shared_shadow =
      checks.on(Check::kUnwritten) || checks.on(Check::kSharedRaces) || checks.on(Check::kProxyFences);
  m.clusters_total = config.grid.count() / m.cluster_size;
  uint64_t total_warps = config.grid.count() * m.warps_per_cta;
  m.global_race =
      (checks.on(Check::kGlobalRaces) || checks.on(Check::kCopyRaces) || checks.on(Check::kProxyFences)) &&
      total_warps <= 16384;
  m.total_warps = m.global_race ? static_cast<uint32_t>(total_warps) : 0;
  m.foreign_agents = m.global_race ? total_warps + config.grid.count() * m.slots : 0;
  m.resident = config.resident_clusters ? std::min<uint64_t>(config.resident_clusters, m.clusters_total)
                                        : m.clusters_total;
  m.sm_count = config.sm_count ? config.sm_count : static_cast<uint32_t>(m.resident * m.cluster_size);
  uint32_t registers = config.registers_per_thread;
  if (!registers)
    registers = info.max_registers
                    ? info.max_registers
                    : static_cast<uint32_t>(std::min<uint64_t>(255, 65536 / (m.warps_per_cta * 32)) / 8 * 8);
  m.register_count = (registers + 7) / 8 * 8;
  m.profile = config.profile;
  if (m.profile) {
    m.counts.resize(program->opcodes.size());
    for (size_t i = 0; i < m.counts.size(); ++i) m.counts[i].opcode = program->opcodes[i];
  }
  m.constants = program->constants;
  m.const_space = impl.constants;
  auto addresses = m.memory->globals.find(&impl);
  auto global_at = [&](uint32_t index) -> uint64_t {
    const auto address = addresses->second.find(impl.globals[index].name);
    return address == addresses->second.end() ? 0 : address->second;  // 0: an array of no bytes
  };
  for (const auto& patch : program->patches) {
    uint64_t address = global_at(patch.global) + static_cast<uint64_t>(patch.addend);
    for (uint32_t i = 0; i < 32; ++i) std::memcpy(m.constants.data() + patch.offset + 8 * i, &address, 8);
  }
  for (const auto& r : impl.relocations) {
    const GlobalInfo& target = impl.globals[r.global];
    if (!target.constant) continue;
    for (const auto& symbol : impl.symbols) {
      if (symbol->name != target.name || symbol->space != Space::kConst) continue;
      uint64_t address =
          (r.symbol->space == Space::kGlobal ? global_at(static_cast<uint32_t>(r.symbol->offset))
                                             : r.symbol->offset + kConstWindow) +
          static_cast<uint64_t>(r.addend);
      std::memcpy(m.const_space.data() + symbol->offset + r.offset, &address, 8);
    }
  }
  m.constants.resize(m.constants.size() + 512);
  m.bases[1] = m.constants.data();
  m.run();
  if (m.profile) {
    for (OpcodeCount& count : m.counts) {
      if (count.warp_instructions) report.opcodes.push_back(std::move(count));
    }
    std::sort(report.opcodes.begin(), report.opcodes.end(),
              [](const OpcodeCount& a, const OpcodeCount& b) { return a.nanoseconds > b.nanoseconds; });
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mla::emu

// SPDX-License-Identifier: Apache-2.0
//
// A cluster as it starts: CTAs, warps, special registers.
#include <algorithm>

#include "tests/emulator/engine/machine.h"

namespace mla::emu {

void Machine::start_cluster() {
  uint64_t index = clusters_started++;
  auto owned = std::make_unique<Cluster>();
  Cluster* k = owned.get();
  k->index = index;
  const Dim3& shape = cluster_shape;
  Dim3 count{grid.x / shape.x, grid.y / shape.y, grid.z / shape.z};
  k->id = {static_cast<uint32_t>(index % count.x), static_cast<uint32_t>(index / count.x % count.y),
           static_cast<uint32_t>(index / count.x / count.y)};
  k->live_ctas = cluster_size;
  k->live_warps = cluster_size * warps_per_cta;
  k->arriving.v.assign(3 * agents, 0);
  const uint32_t threads = static_cast<uint32_t>(block.count());
  for (uint32_t rank = 0; rank < cluster_size; ++rank) {
    auto c = std::make_unique<Cta>();
    c->cluster = k;
    c->rank = rank;
    Dim3 in_cluster{rank % shape.x, rank / shape.x % shape.y, rank / shape.x / shape.y};
    c->id = {k->id.x * shape.x + in_cluster.x, k->id.y * shape.y + in_cluster.y,
             k->id.z * shape.z + in_cluster.z};
    c->linear = c->id.x + grid.x * (c->id.y + grid.y * c->id.z);
    c->shared_end = smem_total;
    c->shared.resize((size_t{smem_total} + 15) / 16 * 16);
    if (shared_shadow) c->cells.resize(c->shared.size() / 16 * cell_bytes);
    for (NamedBarrier& b : c->named) b.arriving.v.assign(3 * agents, 0);
    c->live_warps = warps_per_cta;
    c->live_threads = threads;
    c->first_agent = rank * agents_per_cta;
    c->slot_clock.assign(slots, 0);
    c->slot_busy.assign(slots, 0);
    c->slot_line.assign(slots, 0);
    for (uint32_t i = 0; i < warps_per_cta; ++i) {
      auto w = std::make_unique<Warp>();
      w->cta = c.get();
      w->index = i;
      w->agent = c->first_agent + i;
      w->global_agent = static_cast<uint32_t>((index * cluster_size + rank) * warps_per_cta + i);
      uint32_t lanes_here = std::min(32u, threads - 32 * i);
      w->live = w->initial = lanes_here == 32 ? ~0u : (1u << lanes_here) - 1;
      w->registers.resize(program->register_bytes);
      w->local.resize(size_t{32} * program->local_bytes);
      w->frame.resize(size_t{32} * program->frame_bytes);
      w->clocks.v.assign(3 * agents, 0);
      w->clocks.v[w->agent] = 1;
      w->register_count = register_count;
      w->groups.reserve(40);
      Group g;
      g.id = w->next_group++;
      g.mask = w->live;
      w->groups.push_back(g);
      // Special registers.
      for (const auto& special : program->specials) {
        const std::string& name = special.first;
        const uint32_t place = special.second;
        uint32_t v[32];
        uint64_t wide[32] = {};
        bool is_wide = false;
        for (uint32_t lane = 0; lane < 32; ++lane) {
          uint32_t linear = 32 * i + lane;
          Dim3 tid{linear % block.x, linear / block.x % block.y, linear / block.x / block.y};
          auto part = [&](const Dim3& d) {
            return name.back() == 'x' ? d.x : name.back() == 'y' ? d.y : name.back() == 'z' ? d.z : 0;
          };
          uint32_t value = 0;
          std::string base = name.substr(0, name.find('.'));
          if (base == "%tid")
            value = part(tid);
          else if (base == "%ntid")
            value = part(block);
          else if (base == "%ctaid")
            value = part(c->id);
          else if (base == "%nctaid")
            value = part(grid);
          else if (base == "%laneid")
            value = lane;
          else if (base == "%warpid")
            value = i;
          else if (base == "%nwarpid")
            value = warps_per_cta;
          else if (base == "%clusterid")
            value = part(k->id);
          else if (base == "%nclusterid")
            value = part(count);
          else if (base == "%cluster_ctaid")
            value = part(in_cluster);
          else if (base == "%cluster_nctaid")
            value = part(shape);
          else if (base == "%cluster_ctarank")
            value = rank;
          else if (base == "%cluster_nctarank")
            value = cluster_size;
          else if (base == "%smid")
            value = static_cast<uint32_t>((index % resident * cluster_size + rank) % sm_count);
          else if (base == "%nsmid")
            value = sm_count;
          else if (base == "%lanemask_eq")
            value = 1u << lane;
          else if (base == "%lanemask_lt")
            value = (1u << lane) - 1;
          else if (base == "%lanemask_le")
            value = (1u << lane) | ((1u << lane) - 1);
          else if (base == "%lanemask_gt")
            value = ~((1u << lane) | ((1u << lane) - 1));
          else if (base == "%lanemask_ge")
            value = ~((1u << lane) - 1);
          else if (base == "%dynamic_smem_size")
            value = config->dynamic_shared_bytes;
          else if (base == "%total_smem_size" || base == "%aggr_smem_size")
            value = smem_total;
          else if (base == "%reserved_smem_offset_end" || base == "%reserved_smem_offset_cap")
            value = kSharedBegin;
          else if (base == "%is_explicit_cluster")
            value = explicit_cluster ? ~0u : 0u;
          else if (base == "%gridid" || base == "%current_graph_exec") {
            is_wide = true;
            wide[lane] = base == "%gridid" ? launch_serial : 0;
          }
          v[lane] = value;
        }
        if (is_wide) {
          std::memcpy(w->registers.data() + place, wide, sizeof wide);
        } else {
          std::memcpy(w->registers.data() + place, v, sizeof v);
        }
      }
      make_runnable(w.get());
      c->warps.push_back(std::move(w));
    }
    k->ctas.push_back(std::move(c));
  }
  clusters.push_back(std::move(owned));
}

}  // namespace mla::emu

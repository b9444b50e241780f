// SPDX-License-Identifier: Apache-2.0
//
// The workspace that every kernel of a bundle shares:
// [ header, counters: the largest zeroed_bytes of the bundle | partial results of the kernel at hand ].
#pragma once

#include <cstdint>
#include <vector>

#include "loader/include/mla_loader.h"
#include "loader/src/error.h"
#include "manifest/manifest.h"

namespace mla::loader {

// Where a bundle's workspaces are laid out alike: the counters of one kernel never lie in the partial
// results of another.
struct WorkspaceLayout {
  uint64_t zeroed_bytes = 0;     // what initialising writes; 0: no kernel uses a workspace
  uint64_t partials_offset = 0;  // of every kernel's partial results
};
// Of the kernels that are usable (`unusable` is empty).
WorkspaceLayout workspace_layout(const std::vector<manifest::Kernel>& kernels,
                                 const std::vector<std::string>& unusable);

// Bytes that `workers` workers of a kernel need; 0: it uses no workspace.
uint64_t workspace_bytes(const cubin::Facts& facts, const WorkspaceLayout& layout, uint64_t workers);

// As mla_workspace_bytes and mla_workspace_init document.
Error query_workspace(const mla_bundle& bundle, const mla_workspace_query& query,
                      const std::vector<mla_problem>& problems, uint64_t* bytes);
Error init_workspace(const mla_bundle& bundle, uint64_t workspace, uint64_t bytes, void* stream);

}  // namespace mla::loader

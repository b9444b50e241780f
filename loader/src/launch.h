// SPDX-License-Identifier: Apache-2.0
//
// One decode step on a stream. Nothing here allocates unless it fails.
#pragma once

#include <cstdint>

#include "loader/include/mla_loader.h"
#include "loader/src/error.h"

namespace mla::loader {

// As mla_launch and mla_workspace_init document.
Error launch(const mla_kernel& kernel, const mla_launch_args& args, void* stream);
Error init_workspace(const mla_kernel& kernel, uint64_t workspace, uint64_t bytes, void* stream);

}  // namespace mla::loader

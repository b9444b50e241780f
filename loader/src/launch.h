// SPDX-License-Identifier: Apache-2.0
//
// One kernel launch on a stream. Nothing here allocates unless it fails.
#pragma once

#include "loader/include/mla_loader.h"
#include "loader/src/error.h"

namespace mla::loader {

// As mla_launch and mla_merge_launch document.
Error launch(const mla_kernel& kernel, const mla_launch_args& args, void* stream);
Error launch(const mla_kernel& kernel, const mla_merge_args& args, void* stream);

}  // namespace mla::loader

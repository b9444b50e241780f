// SPDX-License-Identifier: Apache-2.0
//
// From a cubin to its entry in the manifest.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/matrix.h"
#include "generator/toolkit.h"
#include "manifest/manifest.h"
#include "manifest/status.h"

namespace mla::generator {

// "cubins/<id>.cubin"
std::string cubin_path(std::string_view id);

// What the cubin `image` says about itself: every field of a manifest entry, and the toolkit. Only
// the spills are not in a cubin: 0 if the kernel has no stack, else kSpillUnknown. Refuses a cubin
// that is broken, has not exactly one kernel, lacks a constant, or contradicts itself.
Status describe(std::span<const std::byte> image, std::string_view file, manifest::Kernel* out,
                std::string* toolkit);

// Every way in which a described cubin and ptxas's report differ from what was asked for or go
// beyond a limit; empty: none.
std::vector<std::string> compare(const Configuration& asked, const manifest::Kernel& built,
                                 const PtxasReport& report);

}  // namespace mla::generator

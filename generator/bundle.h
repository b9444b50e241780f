// SPDX-License-Identifier: Apache-2.0
//
// Bundles on disk: writing one in one piece, reading, checking, comparing, and rebuilding the
// manifest from the cubins.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "manifest/manifest.h"
#include "manifest/status.h"

namespace mla::generator {

// The manifest of the bundle in folder `dir`, and its text if `text` is not null.
Status read_bundle(const std::string& dir, manifest::Manifest* out, std::string* text = nullptr);

// Whether write_bundle may put a bundle at `dir`: nothing may be there, or an empty folder, or a bundle
// with nothing else in it (one of another format version, too), or a link to such a folder. Refuses
// the root folder, the current one, one that holds it, and mount points. Writes nothing.
Status check_out(const std::string& dir);

// Writes a bundle so that `dir` holds either what it held before or the whole new bundle: into a
// folder beside it, which then takes its place. `images` are the cubins, in the order of
// manifest.kernels. A `dir` that check_out refuses is refused. *changed says whether anything was
// written: a bundle of the same content is left alone. Folders beside `dir` that a killed process left
// half way are removed.
Status write_bundle(const std::string& dir, const manifest::Manifest& manifest,
                    const std::vector<std::vector<std::byte>>& images, bool* changed);

// Everything that is wrong with the bundle in `dir`; empty: nothing. Checks the manifest, sizes,
// hashes, the structure of every cubin, every field of the manifest against what the cubin says,
// and that nothing else lies in the folder.
std::vector<std::string> verify_bundle(const std::string& dir);

struct IndexOptions {
  std::string name, version, source_hash;  // ""; not given
  bool fresh = false;                      // do not look at a manifest that is there
};

// The manifest of the cubins in `dir`/cubins. What cubins do not say (name, version, source hash,
// spilled bytes of a kernel with a stack) comes from `options`, else from the manifest that is
// there; without either, name and version are refused, the source hash is 64 zeros and the spills
// are unknown.
Status index_bundle(const std::string& dir, const IndexOptions& options, manifest::Manifest* out);

// The differences between the texts of two manifests that were read, one line each; empty: none.
std::vector<std::string> diff_manifests(std::string_view a, std::string_view b);

// Writes a file in one piece (beside it, then renamed). A link is followed. Refuses a path where
// anything but a regular file or nothing is: a device would be replaced by a file. Messages name the
// path.
Status write_file(const std::string& path, std::string_view text);

}  // namespace mla::generator

// SPDX-License-Identifier: Apache-2.0
//
// Descriptions of the manifest that follow from the field table: the JSON Schema
// (manifest/manifest.schema.json) and the table of docs/bundle.md.
#pragma once

#include <string>

namespace mla::generator {

// JSON Schema (2020-12) of a manifest as this program writes it. A reader takes more: see
// manifest::parse.
std::string schema_text();

// The fields of a kernel as a Markdown table.
std::string field_table();

}  // namespace mla::generator

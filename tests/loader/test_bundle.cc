// SPDX-License-Identifier: Apache-2.0
#include "tests/loader/test_bundle.h"

#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "kernels/common/mla_cubin_info.h"
#include "kernels/common/mla_params.h"
#include "manifest/sha256.h"

namespace mla::test {
namespace {

struct SectionHeader {
  uint32_t name, type;
  uint64_t flags, address, offset, size;
  uint32_t link, info;
  uint64_t align, entry_size;
};

template <typename T>
void put(std::string* out, size_t at, T value) {
  std::memcpy(out->data() + at, &value, sizeof value);
}

template <typename T>
void add_bytes(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string make_cubin(uint32_t sm, const std::string& symbol, size_t bytes) {
  std::string names(1, '\0');
  const auto name = [&names](const std::string& text) {
    const uint32_t at = static_cast<uint32_t>(names.size());
    names += text + '\0';
    return at;
  };
  const std::string strings = std::string(1, '\0') + symbol + '\0';
  constexpr size_t kHeader = 64, kSymbol = 24, kSections = 5;
  constexpr uint32_t kText = 4;

  std::string out(kHeader, '\0');
  SectionHeader sections[kSections] = {};
  const auto section = [&](size_t index, const std::string& text, uint32_t type, uint64_t align,
                           const std::string& content) {
    out.resize((out.size() + align - 1) / align * align);
    sections[index] = {name(text), type, 0, 0, out.size(), content.size(), 0, 0, align, 0};
    out += content;
  };
  section(2, ".strtab", 3, 1, strings);
  std::string symbols(kSymbol, '\0');
  add_bytes(&symbols, uint32_t{1});  // name
  symbols += '\x12';                 // global function
  symbols += '\x10';                 // an entry
  add_bytes(&symbols, static_cast<uint16_t>(kText));
  add_bytes(&symbols, uint64_t{0});   // value
  add_bytes(&symbols, uint64_t{64});  // size
  section(3, ".symtab", 2, 8, symbols);
  sections[3].link = 2;
  sections[3].entry_size = kSymbol;
  size_t code = 128;
  const size_t rest = out.size() + 512;
  if (bytes > rest + code) code = (bytes - rest) / 16 * 16;
  std::string text(code, '\0');
  for (size_t i = 0; i < code; ++i) text[i] = static_cast<char>(i * 37 + sm);
  section(kText, ".text." + symbol, 1, 128, text);
  name(".shstrtab");
  sections[1] = {static_cast<uint32_t>(names.size() - 10), 3, 0, 0, out.size(), names.size(), 0, 0, 1, 0};
  out += names;
  if (bytes > out.size() + kSections * sizeof(SectionHeader))
    out.resize(bytes - kSections * sizeof(SectionHeader));
  out.resize((out.size() + 7) / 8 * 8);
  const uint64_t headers = out.size();
  for (const SectionHeader& header : sections) add_bytes(&out, header);

  std::memcpy(out.data(), "\177ELF\2\1\1\x41\x08", 9);
  put<uint16_t>(&out, 16, 2);
  put<uint16_t>(&out, 18, 190);
  put<uint32_t>(&out, 20, 1);
  put<uint64_t>(&out, 40, headers);
  put<uint32_t>(&out, 48, 0x06000002 | sm << 8);
  put<uint16_t>(&out, 52, kHeader);
  put<uint16_t>(&out, 58, sizeof(SectionHeader));
  put<uint16_t>(&out, 60, kSections);
  put<uint16_t>(&out, 62, 1);
  return out;
}

manifest::Kernel make_kernel(const std::string& id, uint32_t sm, const std::string& suffix) {
  manifest::Kernel kernel;
  kernel.id = id;
  kernel.file = "cubins/" + id + ".cubin";
  kernel.target = {sm, suffix};
  kernel.symbol = "mla_kernel_" + std::to_string(sm);
  cubin::Facts& facts = kernel.facts;
  facts.kind = kind::kDECODE;
  facts.requires_bits = requirement::kROW_TILES | requirement::kPARTIALS;
  facts.family = family::kCLUSTER;
  facts.q_dtype = facts.kv_dtype = dtype::kE4M3;
  facts.out_dtype = dtype::kBF16;
  facts.arithmetic = arithmetic::kQUANTISED;
  facts.mma = mma_form::kPLAIN;
  facts.cache_layout = cache_layout::kDENSE;
  facts.rows = 128;
  facts.head_dim_k = 576;
  facts.head_dim_v = 512;
  facts.tile_tokens = 64;
  facts.page_size_multiple = 16;
  facts.page_size_max = 1024;
  facts.features = feature::kLSE | feature::kPDL | feature::kSEPARATE_VALUES;
  facts.tensor_maps = 1;
  facts.box_tokens = 64;
  facts.k_box = facts.k_swizzle = 64;
  facts.v_box = facts.v_swizzle = 128;
  facts.threads = 384;
  facts.cluster_size = 4;
  facts.dynamic_smem = 100224;
  facts.carveout = 100;
  facts.item_overhead = 2;
  facts.min_share = 4;
  facts.max_flat_merge = 8;
  facts.zeroed_bytes = 4096;
  facts.fixed_bytes = 1000;
  facts.bytes_per_worker = 600000;
  facts.max_workers = 256;
  facts.tile_cost = 4000;
  facts.params_struct = params_struct::kDECODE;
  facts.params_version = kDecodeParamsVersion;
  facts.params_bytes = sizeof(DecodeParams);
  kernel.resources = {168, 0, 0, 0};
  kernel.min_driver = "580.65.06";
  return kernel;
}

manifest::Kernel make_merge_kernel(const std::string& id, uint32_t sm, const std::string& suffix) {
  manifest::Kernel kernel = make_kernel(id, sm, suffix);
  kernel.facts = {};
  cubin::Facts& facts = kernel.facts;
  facts.kind = kind::kMERGE;
  facts.family = family::kMERGE;
  facts.partial_dtype = facts.out_dtype = dtype::kBF16;
  facts.head_dim_v = 512;
  facts.features = feature::kLSE;
  facts.threads = 384;
  facts.cluster_size = 1;
  facts.carveout = -1;
  facts.max_workers = 4096;
  facts.tile_cost = 1;
  facts.params_struct = params_struct::kMERGE;
  facts.params_version = kMergeParamsVersion;
  facts.params_bytes = sizeof(MergeParams);
  return kernel;
}

TestBundle::TestBundle() {
  std::string pattern = (std::filesystem::temp_directory_path() / "mla_loader_test_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  folder_ = std::filesystem::canonical(pattern);
  manifest_.name = "test";
  manifest_.version = "1.2.3";
  manifest_.toolkit = "13.0.88";
  manifest_.source_hash = std::string(64, '5');
}

TestBundle::~TestBundle() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

manifest::Kernel& TestBundle::add(const std::string& id, uint32_t sm, const std::string& suffix) {
  manifest_.kernels.reserve(1024);  // references stay valid
  return manifest_.kernels.emplace_back(make_kernel(id, sm, suffix));
}

manifest::Kernel& TestBundle::add(manifest::Kernel kernel) {
  manifest_.kernels.reserve(1024);
  return manifest_.kernels.emplace_back(std::move(kernel));
}

void TestBundle::write(size_t cubin_bytes) {
  for (manifest::Kernel& kernel : manifest_.kernels) {
    const std::string cubin = make_cubin(kernel.target.sm, kernel.symbol, cubin_bytes);
    kernel.size = cubin.size();
    kernel.sha256 = sha256_hex(cubin);
    std::filesystem::create_directories((folder_ / kernel.file).parent_path());
    write_text(file(kernel.file), cubin);
  }
  write_manifest();
}

void TestBundle::write_manifest() { write_text(file("manifest.json"), manifest::write(manifest_)); }

void TestBundle::edit_manifest(const std::string& from, const std::string& to) {
  std::string text = read_text(file("manifest.json"));
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("manifest.json has no " + from);
  write_text(file("manifest.json"), text.replace(at, from.size(), to));
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
#include "manifest/cubin.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "manifest/json.h"
#include "manifest/text.h"

namespace mla::cubin {

namespace {

static_assert(std::endian::native == std::endian::little, "cubins are little-endian and read in place");

// Facts of the ELF format (System V gABI) and of NVIDIA's variant of it.
constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kProgramHeaderBytes = 56;
constexpr uint64_t kSectionHeaderBytes = 64;
constexpr uint64_t kSymbolBytes = 24;
constexpr uint64_t kRelBytes = 16;
constexpr uint64_t kRelaBytes = 24;

constexpr uint16_t kMachineCuda = 190;
constexpr uint16_t kTypeExec = 2;
constexpr uint8_t kOsAbiOld = 0x33;
constexpr uint8_t kOsAbiNew = 0x41;

enum SectionType : uint32_t {
  kNull = 0,
  kSymtab = 2,
  kStrtab = 3,
  kRela = 4,
  kNote = 7,
  kNobits = 8,
  kRel = 9,
  kNvInfo = 0x70000000,
};
constexpr uint16_t kShnLoReserve = 0xff00;
constexpr uint8_t kSymObject = 1;
constexpr uint8_t kSymFunc = 2;
constexpr uint8_t kOtherEntry = 0x10;  // st_other of a kernel, as against a device function

// Records of .nv.info: format byte, attribute byte, then two value bytes, or length and payload.
constexpr uint8_t kFormatSized = 4;
enum Attribute : uint8_t {
  kMaxThreads = 0x05,
  kReqNtid = 0x10,
  kFrameSize = 0x11,
  kMinStackSize = 0x12,
  kKparamInfo = 0x17,
  kCbankParamSize = 0x19,
  kRegCount = 0x2f,
  kCtaPerCluster = 0x3d,
};
// Shared memory that the system keeps for itself counts into .nv.shared.<kernel>.
constexpr uint64_t kReservedSmem = 0x400;
constexpr std::string_view kSharedPrefix = ".nv.shared.";
constexpr size_t kMaxName = 1024;
constexpr uint32_t kNoteToolkit = 2000;  // type of .note.nv.tkinfo

std::string hex(uint64_t value) {
  char buffer[24];
  snprintf(buffer, sizeof(buffer), "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

struct Section {
  uint32_t name;
  uint32_t type;
  uint64_t flags;
  uint64_t address;
  uint64_t offset;
  uint64_t size;
  uint32_t link;
  uint32_t info;
  uint64_t align;
  uint64_t entry_size;
};
static_assert(sizeof(Section) == kSectionHeaderBytes);

struct Symbol {
  uint32_t name;
  uint8_t info;
  uint8_t other;
  uint16_t section;
  uint64_t value;
  uint64_t size;
  uint8_t type() const { return info & 15; }
};
static_assert(sizeof(Symbol) == kSymbolBytes);

class Elf {
 public:
  Elf(std::span<const std::byte> image, std::string_view file) : image_(image), file_(file) {}

  Status check();
  Status check_kernel(uint32_t sm, std::string_view symbol) const;
  Status read(Info* out) const;

 private:
  Status fail(const std::string& where, const std::string& what) const {
    return Status::invalid(file_ + ": " + where + ": " + what);
  }
  bool fits(uint64_t offset, uint64_t bytes) const {
    return offset <= image_.size() && bytes <= image_.size() - offset;
  }
  // The caller has checked that the value fits.
  template <typename T>
  T load(uint64_t offset) const {
    T value;
    std::memcpy(&value, image_.data() + offset, sizeof(T));
    return value;
  }
  uint16_t section_count() const { return static_cast<uint16_t>(sections_.size()); }
  std::span<const std::byte> bytes_of(const Section& section) const {
    return section.type == kNobits ? std::span<const std::byte>()
                                   : image_.subspan(section.offset, section.size);
  }
  // A checked string table ends with NUL, so the search stays within it. A longer name than
  // kMaxName is cut one byte beyond: it is none that anyone looks for, and many symbols may share it.
  std::string_view string_at(const Section& table, uint64_t at) const {
    const char* text = reinterpret_cast<const char*>(image_.data() + table.offset + at);
    return {text, strnlen(text, kMaxName + 1)};
  }
  std::string_view name_of(const Section& section) const {
    return string_at(sections_[names_], section.name);
  }
  std::string describe(size_t index) const {
    return "section " + std::to_string(index) + " (" + printable(name_of(sections_[index])) + ")";
  }
  Symbol symbol(uint64_t index) const { return load<Symbol>(symtab_->offset + index * kSymbolBytes); }
  static bool is_kernel(const Symbol& symbol) {
    return symbol.type() == kSymFunc && (symbol.other & kOtherEntry) != 0 && symbol.section != 0 &&
           symbol.section < kShnLoReserve;
  }
  std::string_view name_of(const Symbol& symbol) const {
    return string_at(sections_[symtab_->link], symbol.name);
  }

  Status check_header();
  Status check_program_headers() const;
  Status check_sections();
  Status check_symbols();
  Status check_overlap() const;
  Status check_relocations(size_t index) const;
  Status check_note(size_t index) const;
  Status check_info(size_t index) const;

  // Calls visit(attribute, payload) for every record; the section has passed check_info.
  template <typename Visit>
  void each_record(const Section& section, Visit visit) const;
  Status read_toolkit(Info* out) const;
  Status read_constants(Info* out) const;
  Status read_kernels(Info* out) const;

  std::span<const std::byte> image_;
  std::string file_;
  std::vector<Section> sections_;
  const Section* symtab_ = nullptr;
  uint64_t symbol_count_ = 0;
  uint32_t names_ = 0;
  uint32_t sm_ = 0;
  uint32_t abi_version_ = 0;
};

Status Elf::check() {
  if (Status status = check_header(); !status.ok()) return status;
  if (Status status = check_program_headers(); !status.ok()) return status;
  if (Status status = check_sections(); !status.ok()) return status;
  if (Status status = check_symbols(); !status.ok()) return status;
  if (Status status = check_overlap(); !status.ok()) return status;
  for (size_t i = 0; i < sections_.size(); ++i) {
    Status status;
    switch (sections_[i].type) {
      case kRel:
      case kRela:
        status = check_relocations(i);
        break;
      case kNote:
        status = check_note(i);
        break;
      case kNvInfo:
        status = check_info(i);
        break;
      default:
        break;
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status Elf::check_header() {
  if (!fits(0, kHeaderBytes)) {
    return fail("ELF header",
                "the file has " + std::to_string(image_.size()) + " bytes; expected at least 64");
  }
  const auto byte = [&](uint64_t at) { return load<uint8_t>(at); };
  if (byte(0) != 0x7f || byte(1) != 'E' || byte(2) != 'L' || byte(3) != 'F') {
    return fail("ELF header", "starts with " + hex(load<uint32_t>(0)) + "; not an ELF file");
  }
  if (byte(4) != 2) return fail("ELF header", "class " + std::to_string(byte(4)) + "; expected 2 (64 bits)");
  if (byte(5) != 1) {
    return fail("ELF header", "byte order " + std::to_string(byte(5)) + "; expected 1 (little-endian)");
  }
  if (byte(6) != 1) return fail("ELF header", "version " + std::to_string(byte(6)) + "; expected 1");
  if (byte(7) != kOsAbiOld && byte(7) != kOsAbiNew) {
    return fail("ELF header", "OS ABI " + hex(byte(7)) + "; expected 0x33 or 0x41 (CUDA)");
  }
  abi_version_ = byte(8);
  if (abi_version_ != 7 && abi_version_ != 8) {
    return fail("ELF header", "CUDA ABI version " + std::to_string(abi_version_) +
                                  " is not known to this program; expected 7 or 8");
  }
  if (const uint16_t type = load<uint16_t>(16); type != kTypeExec) {
    return fail("ELF header", "type " + std::to_string(type) + "; expected 2 (executable)");
  }
  if (const uint16_t machine = load<uint16_t>(18); machine != kMachineCuda) {
    return fail("ELF header", "machine " + std::to_string(machine) + "; expected 190 (CUDA)");
  }
  if (const uint16_t bytes = load<uint16_t>(52); bytes != kHeaderBytes) {
    return fail("ELF header", "header of " + std::to_string(bytes) + " bytes; expected 64");
  }
  const uint32_t flags = load<uint32_t>(48);
  sm_ = abi_version_ == 7 ? flags & 0xff : (flags >> 8) & 0xff;
  return {};
}

Status Elf::check_program_headers() const {
  const uint64_t offset = load<uint64_t>(32);
  const uint16_t entry = load<uint16_t>(54);
  const uint16_t count = load<uint16_t>(56);
  if (count == 0) return {};
  if (entry != kProgramHeaderBytes) {
    return fail("ELF header", "program headers of " + std::to_string(entry) + " bytes; expected 56");
  }
  if (!fits(offset, uint64_t{count} * kProgramHeaderBytes)) {
    return fail("program headers", std::to_string(count) + " at offset " + hex(offset) +
                                       " reach beyond the file's " + std::to_string(image_.size()) +
                                       " bytes");
  }
  for (uint16_t i = 0; i < count; ++i) {
    const uint64_t at = offset + i * kProgramHeaderBytes;
    const uint64_t begin = load<uint64_t>(at + 8);
    const uint64_t in_file = load<uint64_t>(at + 32);
    const uint64_t in_memory = load<uint64_t>(at + 40);
    const std::string where = "program header " + std::to_string(i);
    if (!fits(begin, in_file)) {
      return fail(where, hex(in_file) + " bytes at offset " + hex(begin) + " reach beyond the file's " +
                             std::to_string(image_.size()) + " bytes");
    }
    if (in_memory < in_file) {
      return fail(where,
                  hex(in_memory) + " bytes in memory are less than the " + hex(in_file) + " in the file");
    }
  }
  return {};
}

Status Elf::check_sections() {
  const uint64_t offset = load<uint64_t>(40);
  const uint16_t entry = load<uint16_t>(58);
  const uint16_t count = load<uint16_t>(60);
  names_ = load<uint16_t>(62);
  if (entry != kSectionHeaderBytes) {
    return fail("ELF header", "section headers of " + std::to_string(entry) + " bytes; expected 64");
  }
  if (count == 0 || count >= kShnLoReserve) {
    return fail("ELF header", std::to_string(count) + " sections; expected 1 to 65279");
  }
  if (!fits(offset, uint64_t{count} * kSectionHeaderBytes)) {
    return fail("section headers", std::to_string(count) + " at offset " + hex(offset) +
                                       " reach beyond the file's " + std::to_string(image_.size()) +
                                       " bytes");
  }
  if (names_ >= count) {
    return fail("ELF header", "section names in section " + std::to_string(names_) + "; there are " +
                                  std::to_string(count) + " sections");
  }
  sections_.resize(count);
  std::memcpy(sections_.data(), image_.data() + offset, count * kSectionHeaderBytes);
  // Bounds and string tables first: names are needed for the other messages.
  for (size_t i = 0; i < count; ++i) {
    const Section& section = sections_[i];
    const std::string where = "section " + std::to_string(i);
    if (section.type == kNobits || (i == 0 && section.type == kNull)) continue;
    if (!fits(section.offset, section.size)) {
      return fail(where, hex(section.size) + " bytes at offset " + hex(section.offset) +
                             " reach beyond the file's " + std::to_string(image_.size()) + " bytes");
    }
    if (section.type == kStrtab &&
        (section.size == 0 || load<char>(section.offset + section.size - 1) != '\0')) {
      return fail(where, "a string table that does not end with NUL");
    }
  }
  if (sections_[names_].type != kStrtab) {
    return fail("section " + std::to_string(names_),
                "type " + hex(sections_[names_].type) + "; expected the string table of the section names");
  }
  for (size_t i = 0; i < count; ++i) {
    const Section& section = sections_[i];
    if (section.name >= sections_[names_].size) {
      return fail("section " + std::to_string(i), "name at " + hex(section.name) + " of a string table of " +
                                                      hex(sections_[names_].size) + " bytes");
    }
    if (section.link >= count) {
      return fail(describe(i), "linked to section " + std::to_string(section.link) + "; there are " +
                                   std::to_string(count));
    }
    if (section.align != 0 && !std::has_single_bit(section.align)) {
      return fail(describe(i), "alignment " + hex(section.align) + "; expected a power of two");
    }
  }
  return {};
}

Status Elf::check_symbols() {
  for (size_t i = 0; i < sections_.size(); ++i) {
    const Section& section = sections_[i];
    if (section.type != kSymtab) continue;
    if (symtab_ != nullptr) return fail(describe(i), "a second symbol table; expected one");
    symtab_ = &section;
    if (section.entry_size != kSymbolBytes || section.size % kSymbolBytes != 0) {
      return fail(describe(i), hex(section.size) + " bytes in entries of " + hex(section.entry_size) +
                                   "; expected whole entries of 0x18");
    }
    if (sections_[section.link].type != kStrtab) {
      return fail(describe(i), "linked to " + describe(section.link) + "; expected a string table");
    }
    symbol_count_ = section.size / kSymbolBytes;
  }
  if (symtab_ == nullptr) return fail("section headers", "no symbol table");
  const Section& strings = sections_[symtab_->link];
  for (uint64_t i = 0; i < symbol_count_; ++i) {
    const Symbol entry = symbol(i);
    if (entry.name >= strings.size) {
      return fail("symbol " + std::to_string(i),
                  "name at " + hex(entry.name) + " of a string table of " + hex(strings.size) + " bytes");
    }
    if (entry.section == 0 || entry.section >= kShnLoReserve) continue;
    const auto where = [&] { return "symbol " + std::to_string(i) + " (" + printable(name_of(entry)) + ")"; };
    if (entry.section >= sections_.size()) {
      return fail(where(), "in section " + std::to_string(entry.section) + "; there are " +
                               std::to_string(sections_.size()));
    }
    // Symbols of sections without contents are checked for nothing: there is nothing to read.
    const Section& section = sections_[entry.section];
    if (section.type == kNobits) continue;
    if (entry.value > section.size || entry.size > section.size - entry.value) {
      return fail(where(), hex(entry.size) + " bytes at " + hex(entry.value) + " reach beyond " +
                               describe(entry.section) + " of " + hex(section.size) + " bytes");
    }
  }
  return {};
}

// Sections that are walked record by record may not lie on one another, so that the work is linear in
// the size of the file.
Status Elf::check_overlap() const {
  uint64_t together = 0;
  for (const Section& section : sections_) {
    const bool walked = section.type == kRel || section.type == kRela || section.type == kNote ||
                        section.type == kNvInfo || section.type == kSymtab;
    if (walked) together += section.size;
  }
  if (together <= image_.size()) return {};
  return fail("section headers", "sections of " + hex(together) + " bytes together in a file of " +
                                     hex(image_.size()) + "; expected sections that do not overlap");
}

Status Elf::check_relocations(size_t index) const {
  const Section& section = sections_[index];
  const uint64_t bytes = section.type == kRela ? kRelaBytes : kRelBytes;
  if (section.entry_size != bytes || section.size % bytes != 0) {
    return fail(describe(index), hex(section.size) + " bytes in entries of " + hex(section.entry_size) +
                                     "; expected whole entries of " + hex(bytes));
  }
  if (section.info >= sections_.size()) {
    return fail(describe(index), "for section " + std::to_string(section.info) + "; there are " +
                                     std::to_string(sections_.size()));
  }
  if (&sections_[section.link] != symtab_) {
    return fail(describe(index), "linked to " + describe(section.link) + "; expected the symbol table");
  }
  const Section& target = sections_[section.info];
  for (uint64_t i = 0; i < section.size / bytes; ++i) {
    const uint64_t at = section.offset + i * bytes;
    const uint64_t offset = load<uint64_t>(at);
    const uint32_t symbol = load<uint32_t>(at + 12);
    const auto where = [&] { return describe(index) + ", entry " + std::to_string(i); };
    // The widest field that a relocation patches is not documented; a whole word must fit.
    if (offset > target.size || target.size - offset < 4) {
      return fail(where(), "at " + hex(offset) + " of " + describe(section.info) + ", which has " +
                               hex(target.size) + " bytes");
    }
    if (symbol >= symbol_count_) {
      return fail(where(),
                  "for symbol " + std::to_string(symbol) + "; there are " + std::to_string(symbol_count_));
    }
  }
  return {};
}

uint64_t round4(uint64_t bytes) { return (bytes + 3) & ~uint64_t{3}; }

Status Elf::check_note(size_t index) const {
  const Section& section = sections_[index];
  for (uint64_t at = 0; at < section.size;) {
    if (section.size - at < 12) return fail(describe(index), "a note at " + hex(at) + " is cut off");
    const uint64_t name = load<uint32_t>(section.offset + at);
    const uint64_t description = load<uint32_t>(section.offset + at + 4);
    const uint64_t bytes = 12 + round4(name) + round4(description);
    if (bytes > section.size - at) {
      return fail(describe(index), "a note of " + hex(bytes) + " bytes at " + hex(at) +
                                       " reaches beyond the section's " + hex(section.size));
    }
    at += bytes;
  }
  return {};
}

Status Elf::check_info(size_t index) const {
  const Section& section = sections_[index];
  for (uint64_t at = 0; at < section.size;) {
    if (section.size - at < 4) return fail(describe(index), "a record at " + hex(at) + " is cut off");
    const uint8_t format = load<uint8_t>(section.offset + at);
    const uint8_t attribute = load<uint8_t>(section.offset + at + 1);
    if (format < 1 || format > kFormatSized) {
      return fail(describe(index),
                  "a record at " + hex(at) + " has format " + std::to_string(format) + "; expected 1 to 4");
    }
    const uint64_t payload = format == kFormatSized ? load<uint16_t>(section.offset + at + 2) : 0;
    if (payload > section.size - at - 4) {
      return fail(describe(index), "the record of attribute " + hex(attribute) + " at " + hex(at) + " has " +
                                       hex(payload) + " bytes and reaches beyond the section's " +
                                       hex(section.size));
    }
    at += 4 + payload;
  }
  return {};
}

Status Elf::check_kernel(uint32_t sm, std::string_view wanted) const {
  if (sm != sm_) {
    return fail("ELF header",
                "machine code for sm_" + std::to_string(sm_) + "; expected sm_" + std::to_string(sm));
  }
  constexpr size_t kMostNamed = 8;
  std::string others;
  size_t count = 0;
  for (uint64_t i = 0; i < symbol_count_; ++i) {
    const Symbol entry = symbol(i);
    if (!is_kernel(entry)) continue;
    if (name_of(entry) == wanted) return {};
    if (++count <= kMostNamed) others += (others.empty() ? "" : ", ") + printable(name_of(entry));
  }
  if (count > kMostNamed) others += " and " + std::to_string(count - kMostNamed) + " more";
  return fail("symbol table", "no kernel \"" + printable(wanted) + "\"; " +
                                  (others.empty() ? "it has none" : "it has " + others));
}

template <typename Visit>
void Elf::each_record(const Section& section, Visit visit) const {
  for (uint64_t at = 0; at < section.size;) {
    const uint64_t begin = section.offset + at;
    const bool sized = load<uint8_t>(begin) == kFormatSized;
    const uint64_t bytes = sized ? load<uint16_t>(begin + 2) : 2;
    // Of the short formats the two value bytes are the payload.
    visit(load<uint8_t>(begin + 1), image_.subspan(sized ? begin + 4 : begin + 2, bytes));
    at += sized ? 4 + bytes : 4;
  }
}

template <typename T>
T load_from(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

Status Elf::read_toolkit(Info* out) const {
  for (size_t i = 0; i < sections_.size(); ++i) {
    const Section& section = sections_[i];
    if (section.type != kNote || name_of(section) != ".note.nv.tkinfo") continue;
    if (section.size < 12) return fail(describe(i), "empty; expected the toolkit's note");
    const uint64_t name = round4(load<uint32_t>(section.offset));
    const uint64_t bytes = load<uint32_t>(section.offset + 4);
    const std::span<const std::byte> note = image_.subspan(section.offset + 12 + name, bytes);
    // u32 version, then five offsets into the strings that follow: object, tool, version, branch,
    // options.
    if (load<uint32_t>(section.offset + 8) != kNoteToolkit || bytes < 25 ||
        load_from<char>(note, bytes - 1) != 0) {
      return fail(describe(i), "not in the known form: expected note type 2000 with five strings");
    }
    const auto text = [&](size_t field) -> std::string_view {
      const uint64_t at = load_from<uint32_t>(note, 4 * field);
      return at < bytes - 24 ? reinterpret_cast<const char*>(note.data() + 24 + at) : "";
    };
    const std::string_view version = text(3);
    if (const size_t at = version.rfind(", V"); at != std::string_view::npos)
      out->toolkit = version.substr(at + 3);
    out->command_line = text(5);
    for (std::string_view flag : {"-arch ", "-arch=", "--gpu-name ", "--gpu-name="}) {
      const size_t at = out->command_line.find(flag);
      if (at == std::string::npos) continue;
      const std::string_view rest = std::string_view(out->command_line).substr(at + flag.size());
      out->arch = rest.substr(0, rest.find(' '));
      break;
    }
    if (out->toolkit.empty() || out->arch.empty()) {
      return fail(describe(i), "no toolkit version or no -arch in " + json::quote(version) + ", " +
                                   json::quote(out->command_line));
    }
  }
  return {};
}

Status Elf::read_constants(Info* out) const {
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < symbol_count_; ++i) {
    const Symbol entry = symbol(i);
    if (entry.type() != kSymObject || entry.size != 4 || entry.section == 0 ||
        entry.section >= kShnLoReserve) {
      continue;
    }
    const Section& section = sections_[entry.section];
    if (section.type == kNobits || name_of(section) != ".nv.constant3") continue;
    const std::string_view name = name_of(entry);
    if (name.size() > kMaxName) continue;
    if (!seen.insert(name).second) {
      return fail("symbol " + std::to_string(i), "the constant " + printable(name) + " stands twice");
    }
    out->constants.emplace_back(name, load<uint32_t>(section.offset + entry.value));
  }
  return {};
}

// One pass over the sections for all kernels: a record or section finds its kernel by the index of the
// kernel's symbol or of its section.
Status Elf::read_kernels(Info* out) const {
  struct Found {
    bool has_registers = false;
    bool malformed = false;
  };
  std::vector<Found> found;
  std::unordered_map<uint64_t, size_t> by_symbol;
  std::unordered_map<uint32_t, size_t>
      by_section;  // the last kernel of a section: nvcc gives each one of its own
  for (uint64_t i = 0; i < symbol_count_; ++i) {
    const Symbol entry = symbol(i);
    if (!is_kernel(entry)) continue;
    Kernel& kernel = out->kernels.emplace_back();
    kernel.symbol = name_of(entry);
    const std::string where = "kernel " + printable(kernel.symbol);
    if (kernel.symbol.size() > kMaxName) return fail(where, "a name of more than 1024 bytes");
    if (sections_[entry.section].type == kNobits) return fail(where, "has no instructions");
    kernel.code_offset = sections_[entry.section].offset + entry.value;
    kernel.code_bytes = entry.size;
    by_symbol[i] = found.size();
    if (!by_section.emplace(entry.section, found.size()).second) {
      return fail(where, "lies in " + describe(entry.section) + " with another kernel");
    }
    found.emplace_back();
  }
  for (const Section& section : sections_) {
    const std::string_view name = name_of(section);
    if (section.type == kNobits && name.starts_with(kSharedPrefix)) {
      const auto at = by_section.find(section.info);
      if (at == by_section.end()) continue;
      Kernel& kernel = out->kernels[at->second];
      if (name.substr(kSharedPrefix.size()) != kernel.symbol) continue;
      if (section.size > UINT32_MAX) return fail(printable(name), "of " + hex(section.size) + " bytes");
      kernel.static_smem =
          section.size > kReservedSmem ? static_cast<uint32_t>(section.size - kReservedSmem) : 0;
    }
    if (section.type != kNvInfo) continue;
    if (name == ".nv.info") {
      each_record(section, [&](uint8_t attribute, std::span<const std::byte> payload) {
        if (attribute != kRegCount && attribute != kFrameSize && attribute != kMinStackSize) return;
        if (payload.size() < 8) {
          for (Found& one : found) one.malformed = true;
          return;
        }
        const auto at = by_symbol.find(load_from<uint32_t>(payload, 0));
        if (at == by_symbol.end()) return;
        Kernel& kernel = out->kernels[at->second];
        const uint32_t value = load_from<uint32_t>(payload, 4);
        if (attribute == kRegCount) {
          kernel.registers = value;
          found[at->second].has_registers = true;
        } else {
          kernel.stack_bytes = std::max(kernel.stack_bytes, value);
        }
      });
      continue;
    }
    const auto at = by_section.find(section.info);
    if (at == by_section.end()) continue;
    Kernel& kernel = out->kernels[at->second];
    bool& malformed = found[at->second].malformed;
    const auto dims = [&](std::span<const std::byte> payload, std::array<uint32_t, 3>* to) {
      malformed |= payload.size() < 12;
      for (size_t i = 0; i < 3 && payload.size() >= 12; ++i) (*to)[i] = load_from<uint32_t>(payload, 4 * i);
    };
    each_record(section, [&](uint8_t attribute, std::span<const std::byte> payload) {
      if (attribute == kReqNtid) dims(payload, &kernel.threads);
      if (attribute == kMaxThreads) dims(payload, &kernel.max_threads);
      if (attribute == kCtaPerCluster) dims(payload, &kernel.cluster);
      if (attribute == kCbankParamSize) kernel.param_bytes = load_from<uint16_t>(payload, 0);
      if (attribute != kKparamInfo) return;
      malformed |= payload.size() < 12;
      if (payload.size() < 12) return;
      kernel.params.push_back({load_from<uint16_t>(payload, 4), load_from<uint16_t>(payload, 6),
                               load_from<uint32_t>(payload, 8) >> 18});
    });
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Kernel& kernel = out->kernels[i];
    const std::string where = "kernel " + printable(kernel.symbol);
    if (found[i].malformed) return fail(where, "an .nv.info record is shorter than its kind");
    if (!found[i].has_registers) return fail(where, "no register count in .nv.info");
    std::sort(kernel.params.begin(), kernel.params.end(),
              [](const Param& a, const Param& b) { return a.ordinal < b.ordinal; });
  }
  return {};
}

Status Elf::read(Info* out) const {
  Info info;
  info.sm = sm_;
  info.abi_version = abi_version_;
  if (Status status = read_toolkit(&info); !status.ok()) return status;
  if (Status status = read_constants(&info); !status.ok()) return status;
  if (Status status = read_kernels(&info); !status.ok()) return status;
  *out = std::move(info);
  return {};
}

}  // namespace

const uint32_t* Info::constant(std::string_view name) const {
  for (const auto& [known, value] : constants) {
    if (known == name) return &value;
  }
  return nullptr;
}

Status check(std::span<const std::byte> image, std::string_view file) { return Elf(image, file).check(); }

Status check(std::span<const std::byte> image, std::string_view file, uint32_t sm, std::string_view symbol) {
  Elf elf(image, file);
  if (Status status = elf.check(); !status.ok()) return status;
  return elf.check_kernel(sm, symbol);
}

Status read(std::span<const std::byte> image, std::string_view file, Info* out) {
  Elf elf(image, file);
  if (Status status = elf.check(); !status.ok()) return status;
  return elf.read(out);
}

}  // namespace mla::cubin

// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/driver/config.h"

#include <charconv>
#include <limits>

namespace mla::emu::driver {
namespace {

struct Limits {
  int sm;
  uint32_t smem_per_sm_kib, smem_per_block_kib, threads_per_sm, blocks_per_sm, l2_mib;
};

// CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
constexpr Limits kLimits[] = {
    {80, 164, 163, 2048, 32, 40},   {86, 100, 99, 1536, 16, 6},    {87, 164, 163, 1536, 16, 4},
    {89, 100, 99, 1536, 24, 72},    {90, 228, 227, 2048, 32, 50},  {100, 228, 227, 2048, 32, 126},
    {103, 228, 227, 2048, 32, 126}, {110, 228, 227, 1536, 24, 32}, {120, 100, 99, 1536, 24, 96},
    {121, 100, 99, 1536, 24, 24},
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool parse_device(std::string_view text, DeviceConfig* device, std::string* error) {
  const std::vector<std::string_view> fields = split(text, ':');
  const auto fail = [&](std::string_view field, const std::string& reason) {
    *error =
        "MLA_EMU_DEVICES: device \"" + std::string(text) + "\": \"" + std::string(field) + "\" " + reason;
    return false;
  };
  uint64_t sm = 0;
  if (fields[0].substr(0, 3) != "sm_" || !parse_size(fields[0].substr(3), &sm)) {
    return fail(fields[0], "is not a compute capability such as sm_120");
  }
  const Limits* limits = nullptr;
  for (const Limits& entry : kLimits) {
    if (uint64_t(entry.sm) == sm) limits = &entry;
  }
  if (!limits) {
    std::string known;
    for (const Limits& entry : kLimits) known += " sm_" + std::to_string(entry.sm);
    return fail(fields[0], "is not known; known are" + known);
  }
  device->cc_major = limits->sm / 10;
  device->cc_minor = limits->sm % 10;
  device->smem_per_sm = limits->smem_per_sm_kib * 1024;
  device->smem_per_block_optin = limits->smem_per_block_kib * 1024;
  device->threads_per_sm = limits->threads_per_sm;
  device->blocks_per_sm = limits->blocks_per_sm;
  device->l2_bytes = limits->l2_mib << 20;
  device->memory_bytes = uint64_t(16) << 30;
  for (size_t i = 1; i < fields.size(); ++i) {
    const size_t equals = fields[i].find('=');
    const std::string_view key = equals == std::string_view::npos ? "sms" : fields[i].substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? fields[i] : fields[i].substr(equals + 1);
    uint64_t number = 0;
    if (!parse_size(value, &number) || number == 0) {
      return fail(fields[i], "needs a number of at least 1");
    }
    const auto put = [&](auto* field, uint64_t most) {
      if (number > most) return fail(fields[i], "is above the most allowed, " + std::to_string(most));
      *field = static_cast<std::remove_pointer_t<decltype(field)>>(number);
      return true;
    };
    bool ok = false;
    if (key == "sms") {
      ok = put(&device->sms, 1024);
    } else if (key == "gpc") {
      ok = put(&device->sms_per_gpc, 1024);
    } else if (key == "memory") {
      ok = put(&device->memory_bytes, uint64_t(1) << 40);
    } else if (key == "smem") {
      ok = put(&device->smem_per_block_optin, device->smem_per_sm);
    } else if (key == "smem_sm") {
      ok = put(&device->smem_per_sm, 1 << 20);
    } else {
      return fail(fields[i], "has an unknown key; known are sms, gpc, memory, smem, smem_sm");
    }
    if (!ok) return false;
  }
  return true;
}

}  // namespace

bool parse_size(std::string_view text, uint64_t* bytes) {
  int shift = 0;
  if (!text.empty()) {
    const char unit = text.back();
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
    if (shift) text.remove_suffix(1);
  }
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return false;
  if (number > (std::numeric_limits<uint64_t>::max() >> shift)) return false;
  *bytes = number << shift;
  return true;
}

bool parse_devices(std::string_view text, std::vector<DeviceConfig>* devices, std::string* error) {
  devices->clear();
  if (text == "none") return true;
  for (const std::string_view part : split(text, ',')) {
    DeviceConfig device;
    if (!parse_device(part, &device, error)) return false;
    devices->push_back(device);
  }
  return true;
}

}  // namespace mla::emu::driver

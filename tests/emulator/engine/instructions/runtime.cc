// SPDX-License-Identifier: Apache-2.0
//
// Functions of the device runtime that have no PTX: vprintf and __assertfail.
#include "tests/emulator/engine/instructions/runtime.h"

#include <cstring>

namespace mla::emu {

namespace {

std::string device_string(Machine& m, uint64_t address) {
  std::string text;
  for (uint32_t i = 0; i < 4096; ++i) {
    char c = 0;
    if (address + i >= kConstWindow && address + i < kConstWindow + m.const_space.size()) {
      c = static_cast<char>(m.const_space[address + i - kConstWindow]);
    } else if (Region* region = m.region_of(address + i, 1)) {
      c = static_cast<char>(region->host[address + i - region->address]);
    } else {
      return text + "?";
    }
    if (!c) break;
    text += c;
  }
  return text;
}

}  // namespace

// vprintf(format, arguments): arguments lie in local memory, each aligned to its size.
Next do_vprintf(Machine& m, const Instr& in, uint32_t mask) {
  MLA_FOR_LANES(lane, mask) {
    uint8_t* frame = m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
    uint64_t format = 0, arguments = 0;
    std::memcpy(&format, frame + in.a[0], 8);
    std::memcpy(&arguments, frame + in.a[1], 8);
    std::string text = device_string(m, format);
    uint64_t at = 0;
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        out += text[i];
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == '%') {
        out += '%';
        ++i;
        continue;
      }
      std::string spec = "%";
      bool wide = false;
      ++i;
      while (i < text.size() && std::strchr("-+ #0123456789.hlzjt", text[i])) {
        wide |= text[i] == 'l' || text[i] == 'z' || text[i] == 'j' || text[i] == 't';
        if (!std::strchr("hlzjt", text[i])) spec += text[i];
        ++i;
      }
      char c = i < text.size() ? text[i] : 'd';
      bool is_float = std::strchr("aAeEfFgG", c) != nullptr;
      wide |= is_float || c == 'p' || c == 's';
      uint32_t size = wide ? 8 : 4;
      at = (at + size - 1) / size * size;
      uint64_t value = 0;
      if (arguments) {
        uint8_t* p = m.resolve(static_cast<int>(lane), Space::kGeneric, false, arguments + at, size, kRead);
        if (!p) return Next::kFault;
        std::memcpy(&value, p, size);
      }
      at += size;
      char buffer[128];
      if (c == 's') {
        out += device_string(m, value);
        continue;
      }
      if (is_float) {
        std::snprintf(buffer, sizeof buffer, (spec + c).c_str(), std::bit_cast<double>(value));
      } else if (c == 'd' || c == 'i') {
        long long v = wide ? static_cast<long long>(value) : static_cast<int32_t>(value);
        std::snprintf(buffer, sizeof buffer, (spec + "ll" + c).c_str(), v);
      } else if (c == 'c') {
        std::snprintf(buffer, sizeof buffer, "%c", static_cast<int>(value));
      } else {
        std::snprintf(buffer, sizeof buffer, (spec + "ll" + (c == 'p' ? 'x' : c)).c_str(),
                      static_cast<unsigned long long>(value));
      }
      out += buffer;
    }
    m.report->output += out;
    uint32_t result = static_cast<uint32_t>(out.size());
    std::memcpy(frame + in.a[2], &result, 4);
  }
  return Next::kNext;
}

Next do_assertfail(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t lane = static_cast<uint32_t>(__builtin_ctz(mask));
  uint8_t* frame = m.warp->frame.data() + size_t{lane} * m.program->frame_bytes;
  uint64_t message = 0, file = 0, function = 0;
  uint32_t line = 0;
  std::memcpy(&message, frame + in.a[0], 8);
  std::memcpy(&file, frame + in.a[1], 8);
  std::memcpy(&line, frame + in.a[2], 4);
  std::memcpy(&function, frame + in.a[3], 8);
  return m.fault(FaultKind::kTrap, static_cast<int>(lane), "assertion `%s` failed at %s:%u in %s",
                 device_string(m, message).c_str(), device_string(m, file).c_str(), line,
                 device_string(m, function).c_str());
}

}  // namespace mla::emu

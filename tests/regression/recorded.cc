// SPDX-License-Identifier: Apache-2.0
#include "tests/regression/recorded.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/reference/number_formats.h"

namespace mla::test {
namespace {

constexpr char kFormat[] = "mla-outputs 1";
constexpr size_t kDepthV = 512;
constexpr size_t kMostRows = 16;
constexpr size_t kColumnStep = 16;

std::string words(const std::vector<float>& values) {
  std::string text;
  char word[16];
  for (const float value : values) {
    std::snprintf(word, sizeof(word), " %x", std::bit_cast<uint32_t>(value));
    text += word;
  }
  return text;
}

std::vector<float> floats(const std::string& text) {
  std::vector<float> values;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(word, nullptr, 16))));
  }
  return values;
}

}  // namespace

Sample sample_outputs(const Outputs& outputs) {
  Sample sample;
  const size_t rows = outputs.out.size() / kDepthV;
  const size_t count = std::min(rows, kMostRows);
  for (size_t i = 0; i < count; ++i) {
    const size_t row = i * rows / count + (i * 7) % (rows / count);
    for (size_t d = i % kColumnStep; d < kDepthV; d += kColumnStep) {
      sample.out.push_back(reference::bf16_to_float(outputs.out[row * kDepthV + d]));
    }
    if (!outputs.lse.empty()) sample.lse.push_back(outputs.lse[row]);
  }
  return sample;
}

std::string compare_samples(const Sample& got, const Sample& recorded, double* error) {
  *error = 0;
  if (got.out.size() != recorded.out.size() || got.lse.size() != recorded.lse.size()) {
    return "the recorded outputs have another shape: record again";
  }
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.out.size(); ++i) {
    const double d = static_cast<double>(got.out[i]) - recorded.out[i];
    difference += d * d;
    norm += static_cast<double>(recorded.out[i]) * recorded.out[i];
  }
  *error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  char text[160];
  if (!(*error <= kMaxRecordedError)) {
    std::snprintf(text, sizeof(text), "relative L2 error %.3g against the recorded outputs, at most %.3g",
                  *error, kMaxRecordedError);
    return text;
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (got.lse[i] == recorded.lse[i]) continue;  // -inf, too
    if (!(std::abs(got.lse[i] - recorded.lse[i]) <= kMaxRecordedLse)) {
      std::snprintf(text, sizeof(text), "lse of sampled row %zu is %.7g, recorded %.7g", i, got.lse[i],
                    recorded.lse[i]);
      return text;
    }
  }
  return "";
}

std::string write_samples(const std::string& path, const std::string& device, const Samples& samples) {
  std::ofstream file(path);
  file << kFormat << "\ndevice\t" << device << "\n";
  for (const auto& [name, sample] : samples) {
    file << "case\t" << name << "\t" << words(sample.out) << "\t" << words(sample.lse) << "\n";
  }
  file.close();
  return file ? "" : path + ": cannot be written";
}

std::string read_samples(const std::string& path, std::string* device, Samples* samples) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || line != kFormat) {
    return path + ": not a file of recorded outputs (its first line must be \"" + kFormat + "\")";
  }
  for (size_t number = 2; std::getline(file, line); ++number) {
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
    if (fields.size() == 2 && fields[0] == "device") {
      *device = fields[1];
    } else if (fields.size() >= 3 && fields[0] == "case") {
      Sample& sample = (*samples)[fields[1]];
      sample.out = floats(fields[2]);
      if (fields.size() > 3) sample.lse = floats(fields[3]);
    } else {
      return path + ":" + std::to_string(number) + ": not understood: " + line.substr(0, 60);
    }
  }
  return "";
}

}  // namespace mla::test

// SPDX-License-Identifier: Apache-2.0
//
// A decode problem on the device: buffers with guard zones, launches through the C ABI, results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/regression/cuda_driver.h"
#include "tests/regression/decode_case.h"
#include "tests/regression/loader_api.h"

namespace mla::test {

// Device memory between two guard zones, which notice a write beyond either end.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Driver& driver, uint64_t bytes, bool guarded);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  CUdeviceptr address() const { return base_ ? base_ + guard_ : 0; }
  uint64_t bytes() const { return bytes_; }
  void fill(uint8_t byte);
  void write(const void* source, uint64_t bytes, uint64_t offset = 0);
  void read(void* target, uint64_t bytes, uint64_t offset = 0) const;
  // "" or where the guard zones changed; `name` is the buffer's name in the sentence.
  std::string check_guards(const std::string& name) const;

 private:
  const Driver* driver_ = nullptr;
  CUdeviceptr base_ = 0;
  uint64_t bytes_ = 0;
  uint64_t guard_ = 0;
};

struct PreparedKernel {
  const mla_bundle* bundle = nullptr;
  const mla_kernel* kernel = nullptr;
  uint64_t workspace_zeroed_bytes = 0;  // of the bundle
  mla_kernel_info info = MLA_KERNEL_INFO_INIT;
  mla_prepared_info prepared = MLA_PREPARED_INFO_INIT;
};

// A handle that the loader gave, with what it says of it.
PreparedKernel describe(const LoaderApi& api, const mla_bundle* bundle, const mla_kernel* kernel);

// Number formats of a kernel's inputs.
reference::Format format_of(mla_dtype dtype);

// Workers that take part in a launch of a case: the device's, fewer with a cap on the SMs.
int launch_workers(const PreparedKernel& kernel, const DecodeCase& c);

struct Outputs {
  std::vector<uint16_t> out;  // bf16 [query tokens, heads, 512]
  std::vector<float> lse;     // [query tokens, heads], empty when not wanted
  uint32_t bad_pages = 0;
};

// Every call throws DriverError or LoaderError on failure.
class DecodeRunner {
 public:
  // `poison_workspace`: fill the workspace with NaN before it is initialised. (The emulated driver
  // reports reads of memory that nothing wrote, so there it is left alone.)
  DecodeRunner(const Driver& driver, const LoaderApi& api, const PreparedKernel& kernel, const DecodeCase& c,
               const Layout& layout, bool poison_workspace);
  ~DecodeRunner();
  DecodeRunner(const DecodeRunner&) = delete;
  DecodeRunner& operator=(const DecodeRunner&) = delete;

  CUstream stream() const { return stream_; }
  void upload(const DecodeData& data);
  void poison_outputs();
  void launch();
  void launch_alone(int max_sms);  // request 0 by itself
  void capture(int launches = 1);  // that many launches, one after another, into a graph
  void replay();                   // that graph
  void synchronize();
  Outputs fetch() const;
  // What is wrong with the memory around and behind the outputs after a launch, a sentence each.
  std::vector<std::string> check_memory() const;
  uint64_t device_bytes() const;

 private:
  void launch(int batch, int max_sms);
  void upload_pool(DeviceBuffer& pool, const DecodeData& data, const std::vector<uint8_t>& source, int depth,
                   int64_t token_stride, int64_t page_stride);

  const Driver& driver_;
  const LoaderApi& api_;
  const PreparedKernel& kernel_;
  const DecodeCase& c_;
  Layout layout_;
  CUstream stream_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphExec graph_exec_ = nullptr;
  DeviceBuffer q_, kv_, v_, page_table_, seq_lens_, q_offsets_, out_, lse_, scales_, bad_pages_, workspace_;
};

}  // namespace mla::test

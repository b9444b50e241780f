// SPDX-License-Identifier: Apache-2.0
//
// One decode step of MLA attention on random data, from C++, with the loader opened by dlopen: select,
// prepare, launch, and compare every head and lse with the formula in double precision.
//
//   c++ -std=c++17 decode.cc -lcuda -ldl -o decode
//   ./decode path/to/libmla_loader.so path/to/bundle
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mla_loader.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kHeads = 16, kPageSize = 64, kPages = 8, kMaxPages = 3, kDimK = 576, kDimV = 512;
constexpr float kSoftmaxScale = 0.07216878f;  // 1/sqrt(192)
const std::vector<std::int32_t> kSeqLens = {130, 5};
const std::vector<std::int32_t> kPageTable = {6, 1, 3, 4, 0, 0};

void check_cuda(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(call) + " failed with error " + std::to_string(int(result)));
  }
}

// Device memory that frees itself.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) { check_cuda(cuMemAlloc(&address_, bytes), "cuMemAlloc"); }
  template <class T>
  explicit Buffer(const std::vector<T>& data) : Buffer(data.size() * sizeof(T)) {
    check_cuda(cuMemcpyHtoD(address_, data.data(), data.size() * sizeof(T)), "cuMemcpyHtoD");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cuMemFree(address_); }

  CUdeviceptr get() const { return address_; }
  template <class T>
  std::vector<T> read(std::size_t count) const {
    std::vector<T> data(count);
    check_cuda(cuMemcpyDtoH(data.data(), address_, count * sizeof(T)), "cuMemcpyDtoH");
    return data;
  }

 private:
  CUdeviceptr address_ = 0;
};

double from_e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return code & 0x80 ? -value : value;
}

double from_bf16(std::uint16_t code) {
  const std::uint32_t bits = std::uint32_t{code} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// e4m3 codes of magnitudes from 2^-3 to just below 2.
std::vector<std::uint8_t> random_codes(std::size_t count, std::mt19937& random) {
  std::vector<std::uint8_t> codes(count);
  for (auto& code : codes) code = static_cast<std::uint8_t>((random() & 0x80) | (0x20 + random() % 32));
  return codes;
}

struct Result {
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

// Prints the largest relative error of a head and the largest error of an lse; whether both are small.
bool compare(const std::vector<std::uint8_t>& q, const std::vector<std::uint8_t>& kv, const Result& result) {
  double worst_out = 0, worst_lse = 0;
  for (std::size_t row = 0; row < kSeqLens.size() * kHeads; ++row) {
    const std::size_t request = row / kHeads;
    double sum = 0, difference = 0, norm = 0;
    std::vector<double> want(kDimV);
    for (int i = 0; i < kSeqLens[request]; ++i) {
      const std::size_t page = kPageTable[request * kMaxPages + i / kPageSize];
      const std::uint8_t* token = &kv[(page * kPageSize + i % kPageSize) * kDimK];
      double score = 0;
      for (int d = 0; d < kDimK; ++d) score += from_e4m3(q[row * kDimK + d]) * from_e4m3(token[d]);
      const double weight = std::exp(score * kSoftmaxScale);
      sum += weight;
      for (int d = 0; d < kDimV; ++d) want[d] += weight * from_e4m3(token[d]);
    }
    for (int d = 0; d < kDimV; ++d) {
      const double expected = want[d] / sum;
      difference += std::pow(from_bf16(result.out[row * kDimV + d]) - expected, 2);
      norm += expected * expected;
    }
    const double error_out = std::sqrt(difference / norm);
    const double error_lse = std::abs(result.lse[row] - std::log(sum));
    if (!(error_out < 0.04 && error_lse < 1e-3)) {
      std::printf("request %zu, head %zu: out %.2e, lse %.2e\n", request, row % kHeads, error_out, error_lse);
      return false;
    }
    worst_out = std::max(worst_out, error_out);
    worst_lse = std::max(worst_lse, error_lse);
  }
  std::printf("relative error of out: %.2e, error of lse: %.2e\n", worst_out, worst_lse);
  return true;
}

Result decode(const char* library_path, const char* bundle_path, CUdevice device,
              const std::vector<std::uint8_t>& q, const std::vector<std::uint8_t>& kv) {
  const std::size_t rows = kSeqLens.size() * kHeads;
  mla_problem problem = MLA_PROBLEM_INIT;
  check_cuda(cuDeviceGetAttribute(&problem.cc_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
             "cuDeviceGetAttribute");
  check_cuda(cuDeviceGetAttribute(&problem.cc_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device),
             "cuDeviceGetAttribute");
  problem.heads = kHeads;
  problem.page_size = kPageSize;

  const mla::Library library(library_path);
  mla::Bundle bundle(library, bundle_path);
  const mla_kernel_info selected = bundle.kernel_info(bundle.select(problem));
  const mla::Kernel kernel = bundle.prepare(problem);  // once per device
  std::printf("mla_loader %s selects %s\n", library.version_string().c_str(), selected.id);

  const std::uint64_t workspace_bytes = bundle.workspace_bytes();
  const Buffer workspace(workspace_bytes);  // once per stream
  bundle.workspace_init(workspace.get(), workspace_bytes);

  const Buffer q_buffer(q), kv_buffer(kv), page_table(kPageTable), seq_lens(kSeqLens);
  const Buffer out(rows * kDimV * 2), lse(rows * 4);
  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  args.q = q_buffer.get();
  args.kv = kv_buffer.get();
  args.page_table = page_table.get();
  args.seq_lens = seq_lens.get();
  args.out = out.get();
  args.lse = lse.get();
  args.workspace = workspace.get();
  args.workspace_bytes = workspace_bytes;
  args.pages = kPages;
  args.batch = static_cast<std::int32_t>(kSeqLens.size());
  args.heads = kHeads;
  args.page_size = kPageSize;
  args.max_pages_per_seq = kMaxPages;
  args.softmax_scale = kSoftmaxScale;
  kernel.launch(args);  // every decode step
  check_cuda(cuCtxSynchronize(), "cuCtxSynchronize");
  Result result{out.read<std::uint16_t>(rows * kDimV), lse.read<float>(rows)};
  bundle.close();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s LIBRARY BUNDLE\n", argv[0]);
    return 2;
  }
  try {
    CUdevice device;
    CUcontext context;
    check_cuda(cuInit(0), "cuInit");
    check_cuda(cuDeviceGet(&device, 0), "cuDeviceGet");
    check_cuda(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::mt19937 random(1);
    const auto q = random_codes(kSeqLens.size() * kHeads * kDimK, random);
    const auto kv = random_codes(std::size_t{kPages} * kPageSize * kDimK, random);
    const bool good = compare(q, kv, decode(argv[1], argv[2], device, q, kv));
    check_cuda(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    return good ? 0 : 1;
  } catch (const mla::Error& error) {
    std::fprintf(stderr, "status %d: %s\n", int(error.status()), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// One Hopper kernel in a program of its own, for a debugger, a profiler or compute-sanitizer: random
// data, float64 reference on the GPU, error, determinism, time. The regression suite goes through the
// loader instead.
//
//   nvcc -std=c++20 -O3 -I. -DMLA_ROWS=64 -gencode arch=compute_90a,code=sm_90a \
//        tests/kernels/hopper_debug.cu -o hopper_debug_64
//   ./hopper_debug_64 [--no-check] [--no-time] [--page N] [--splits N] [--sigma X] [--sink LOGIT] [--sink-at
//   I]
//                     batch,q_len,seq_len,heads[,ragged] ...
#include <cuda.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/hopper/mla_decode_hopper.cu"

#define CHECK(call)                                                                              \
  do {                                                                                           \
    const cudaError_t e = (call);                                                                \
    if (e != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                              \
    }                                                                                            \
  } while (0)

namespace {

using namespace mla;

__device__ double decode_e4m3(uint8_t v) {
  const int exponent = (v >> 3) & 15, mantissa = v & 7;
  if (exponent == 15 && mantissa == 7) return nan("");
  const double m = exponent == 0 ? ldexp(mantissa / 8.0, -6) : ldexp(1 + mantissa / 8.0, exponent - 7);
  return v & 0x80 ? -m : m;
}

__device__ uint32_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(x >> 32);
}

// Normal values as e4m3.
__global__ void fill_normal(uint8_t* to, int64_t count, float sigma, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float u = (mix(2 * i + seed * 0x9e3779b97f4a7c15ull) + 1.f) * 0x1p-32f;
    const float v = mix(2 * i + 1 + seed * 0x9e3779b97f4a7c15ull) * 0x1p-32f;
    to[i] = __nv_cvt_float_to_fp8(sigma * sqrtf(-2 * logf(fminf(u, 1.f))) * cospif(2 * v), __NV_SATFINITE,
                                  __NV_E4M3);
  }
}

// One block a query row of `rows`.
__global__ void reference(DecodeParams p, const int* rows, double* scratch, int capacity, double* out,
                          double* lse) {
  const int row = rows[blockIdx.x];
  const int b = row / (p.q_len * p.heads), t = row / p.heads % p.q_len;
  const int seq = reinterpret_cast<const int*>(p.seq_lens)[b];
  const int visible = max(0, min(seq - (p.q_len - 1) + t, capacity));
  const int* pages = reinterpret_cast<const int*>(p.page_table) + b * p.page_table_stride;
  double* score = scratch + static_cast<int64_t>(blockIdx.x) * capacity;
  const uint8_t* q = reinterpret_cast<const uint8_t*>(p.q) + static_cast<int64_t>(row) * 576;
  const uint8_t* kv = reinterpret_cast<const uint8_t*>(p.kv);
  __shared__ double qd[576];
  __shared__ double reduced[256];
  for (int i = threadIdx.x; i < 576; i += blockDim.x) qd[i] = decode_e4m3(q[i]);
  __syncthreads();
  const double scale = static_cast<double>(p.softmax_scale) * p.q_scale * p.kv_scale;
  double m = -INFINITY;
  for (int i = threadIdx.x; i < visible; i += blockDim.x) {
    const uint8_t* k =
        kv + (static_cast<int64_t>(pages[i / p.page_size]) * p.page_size + i % p.page_size) * 576;
    double s = 0;
    for (int d = 0; d < 576; ++d) s += qd[d] * decode_e4m3(k[d]);
    score[i] = s * scale;
    m = fmax(m, score[i]);
  }
  reduced[threadIdx.x] = m;
  __syncthreads();
  for (int i = 0; i < 256; ++i) m = fmax(m, reduced[i]);
  __syncthreads();
  double l = 0;
  for (int i = threadIdx.x; i < visible; i += blockDim.x) l += exp(score[i] - m);
  reduced[threadIdx.x] = l;
  __syncthreads();
  l = 0;
  for (int i = 0; i < 256; ++i) l += reduced[i];
  if (threadIdx.x == 0) lse[blockIdx.x] = visible == 0 ? -INFINITY : m + log(l);
  for (int d = threadIdx.x; d < 512; d += blockDim.x) {
    double o = 0;
    for (int i = 0; i < visible; ++i) {
      o += exp(score[i] - m) *
           decode_e4m3(
               kv[(static_cast<int64_t>(pages[i / p.page_size]) * p.page_size + i % p.page_size) * 576 + d]);
    }
    out[blockIdx.x * 512 + d] = visible == 0 ? 0 : o / l * p.kv_scale;
  }
}

struct Options {
  bool check = true, time = true;
  int page = 64, splits = 0;
  float sigma = 1, sink = 0;
  int sink_at = -1;
};

template <class T>
T* device(size_t count) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, count * sizeof(T)));
  return static_cast<T*>(p);
}

TensorMap encode(uint64_t address, uint64_t dim, int box, CUtensorMapSwizzle swizzle, int page,
                 int box_tokens, int pages) {
  static auto* call = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  alignas(64) CUtensorMap map;
  const cuuint64_t dims[3] = {dim, static_cast<cuuint64_t>(page), static_cast<cuuint64_t>(pages)};
  const cuuint64_t strides[2] = {576, static_cast<cuuint64_t>(576) * page};
  const cuuint32_t boxes[3] = {static_cast<cuuint32_t>(box), static_cast<cuuint32_t>(box_tokens), 1},
                   ones[3] = {1, 1, 1};
  if (call(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, reinterpret_cast<void*>(address), dims, strides, boxes,
           ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled failed\n");
    std::exit(1);
  }
  TensorMap out;
  std::memcpy(&out, &map, sizeof(out));
  return out;
}

bool run(const std::string& text, const Options& o) {
  int batch, q_len, seq, heads;
  if (std::sscanf(text.c_str(), "%d,%d,%d,%d", &batch, &q_len, &seq, &heads) != 4) std::exit(2);
  const bool ragged = text.find("ragged") != std::string::npos;
  std::mt19937 random(7);
  std::vector<int> lens(batch, seq);
  if (ragged) {
    for (int& n : lens) n = std::uniform_int_distribution<int>(seq / 8, seq)(random);
  }
  const int per_seq = (seq + o.page - 1) / o.page, pages = batch * per_seq;
  std::vector<int> table(pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);

  const int64_t q_bytes = int64_t{batch} * q_len * heads * 576, kv_bytes = int64_t{pages} * o.page * 576;
  const int64_t rows = int64_t{batch} * q_len * heads;
  DecodeParams p{};
  uint8_t* q = device<uint8_t>(q_bytes);
  uint8_t* kv = device<uint8_t>(kv_bytes);
  fill_normal<<<1024, 256>>>(q, q_bytes, o.sigma, 1);
  fill_normal<<<1024, 256>>>(kv, kv_bytes, o.sigma, 2);
  if (o.sink_at >= 0) {
    // q has a one in its last element, and there the sink alone has a value: its score is the logit plus
    // noise; its values are 0.
    std::vector<uint8_t> qh(q_bytes);
    CHECK(cudaMemcpy(qh.data(), q, q_bytes, cudaMemcpyDeviceToHost));
    for (int64_t r = 0; r < rows; ++r) qh[r * 576 + 575] = 0x58;  // 16
    CHECK(cudaMemcpy(q, qh.data(), q_bytes, cudaMemcpyHostToDevice));
    std::vector<uint8_t> row(576, 0);
    CHECK(cudaMemset2D(kv + 575, 576, 0, 1, int64_t{pages} * o.page));
    row[575] = __nv_cvt_float_to_fp8(o.sink * 24 / 16, __NV_SATFINITE, __NV_E4M3);
    for (int b = 0; b < batch; ++b) {
      const int at = std::min(o.sink_at, lens[b] - 1);
      CHECK(cudaMemcpy(kv + (int64_t{table[b * per_seq + at / o.page]} * o.page + at % o.page) * 576,
                       row.data(), 576, cudaMemcpyHostToDevice));
    }
  }
  int* d_table = device<int>(pages);
  int* d_lens = device<int>(batch);
  uint16_t* out = device<uint16_t>(rows * 512);
  float* lse = device<float>(rows);
  CHECK(cudaMemcpy(d_table, table.data(), pages * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(d_lens, lens.data(), batch * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(out, 0xff, rows * 1024));
  CHECK(cudaMemset(lse, 0xff, rows * 4));

  CHECK(cudaFuncSetAttribute(MLA_KERNEL_SYMBOL, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             hopper::kDynamicSmem));
  int sms = 0;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(sms / hopper::kClusterSize * hopper::kClusterSize);
  config.blockDim = dim3(hopper::kThreads);
  config.dynamicSmemBytes = hopper::kDynamicSmem;
  int workers = 0;
  CHECK(cudaOccupancyMaxActiveClusters(&workers, MLA_KERNEL_SYMBOL, &config));
  config.gridDim = dim3(workers * hopper::kClusterSize);

  const uint64_t zeroed = hopper::Layout::kZeroedBytes,
                 bytes = zeroed + uint64_t{hopper::Layout::kBytesPerWorker} * workers;
  uint8_t* workspace = device<uint8_t>(bytes);
  CHECK(cudaMemset(workspace, 0xff, bytes));
  CHECK(cudaMemset(workspace, 0, zeroed));
  CHECK(cudaMemcpy(workspace, &kWorkspaceMagic, 8, cudaMemcpyHostToDevice));

  const int box_tokens = std::gcd(o.page, 64);
  p.k_map =
      encode(reinterpret_cast<uint64_t>(kv), 576, 64, CU_TENSOR_MAP_SWIZZLE_64B, o.page, box_tokens, pages);
  p.v_map =
      encode(reinterpret_cast<uint64_t>(kv), 512, 128, CU_TENSOR_MAP_SWIZZLE_128B, o.page, box_tokens, pages);
  p.q = reinterpret_cast<uint64_t>(q);
  p.kv = p.v = reinterpret_cast<uint64_t>(kv);
  p.page_table = reinterpret_cast<uint64_t>(d_table);
  p.seq_lens = reinterpret_cast<uint64_t>(d_lens);
  p.out = reinterpret_cast<uint64_t>(out);
  p.lse = reinterpret_cast<uint64_t>(lse);
  p.workspace = reinterpret_cast<uint64_t>(workspace);
  p.partials = p.workspace + zeroed;
  p.page_table_stride = per_seq;
  p.q_token_stride = heads * 576;
  p.q_head_stride = 576;
  p.out_token_stride = heads * 1024;
  p.out_head_stride = 1024;
  p.lse_token_stride = heads;
  p.lse_head_stride = 1;
  p.softmax_scale = 1.f / 24;
  p.q_scale = p.kv_scale = 1;
  p.batch = batch;
  p.q_len = q_len;
  p.heads = heads;
  p.pages = pages;
  p.max_pages_per_seq = per_seq;
  p.page_size = o.page;
  const PageDivisor divisor = page_divisor(o.page);
  p.page_magic = divisor.magic;
  p.page_shift = divisor.shift;
  while ((1 << p.box_tokens_log2) < box_tokens) ++p.box_tokens_log2;
  p.causal = 1;
  p.max_splits = o.splits;

  bool good = true;
  CHECK(cudaLaunchKernelEx(&config, MLA_KERNEL_SYMBOL, p));
  CHECK(cudaDeviceSynchronize());
  std::printf("%-24s", text.c_str());
  if (o.check) {
    std::vector<uint16_t> first(rows * 512), again(rows * 512);
    std::vector<float> first_lse(rows);
    CHECK(cudaMemcpy(first.data(), out, rows * 1024, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(first_lse.data(), lse, rows * 4, cudaMemcpyDeviceToHost));
    const int samples = static_cast<int>(std::min<int64_t>(rows, 96));
    std::vector<int> sample(samples);
    for (int i = 0; i < samples; ++i)
      sample[i] = static_cast<int>(std::min<int64_t>(rows * i / samples + i % 3, rows - 1));
    int* d_sample = device<int>(samples);
    const int capacity = per_seq * o.page;
    double* scratch = device<double>(static_cast<int64_t>(samples) * capacity);
    double* r_out = device<double>(samples * 512);
    double* r_lse = device<double>(samples);
    CHECK(cudaMemcpy(d_sample, sample.data(), samples * 4, cudaMemcpyHostToDevice));
    reference<<<samples, 256>>>(p, d_sample, scratch, capacity, r_out, r_lse);
    CHECK(cudaDeviceSynchronize());
    std::vector<double> e_out(samples * 512), e_lse(samples);
    CHECK(cudaMemcpy(e_out.data(), r_out, samples * 4096, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(e_lse.data(), r_lse, samples * 8, cudaMemcpyDeviceToHost));
    double error = 0, norm = 0, worst_lse = 0, worst_row = 0;
    int64_t worst = -1;
    for (int i = 0; i < samples; ++i) {
      double row_error = 0, row_norm = 0;
      for (int d = 0; d < 512; ++d) {
        const uint32_t bits = uint32_t{first[int64_t{sample[i]} * 512 + d]} << 16;
        float f;
        std::memcpy(&f, &bits, 4);
        const double diff = f - e_out[i * 512 + d];
        row_error += diff * diff;
        row_norm += e_out[i * 512 + d] * e_out[i * 512 + d];
      }
      error += row_error;
      norm += row_norm;
      const double relative = std::sqrt(row_error / row_norm);
      if (!(relative <= worst_row)) worst_row = relative, worst = sample[i];
      const double l = std::fabs(first_lse[sample[i]] - e_lse[i]);
      if (!(l <= worst_lse)) worst_lse = l;
    }
    int different = 0;
    for (int i = 0; i < 5; ++i) {
      CHECK(cudaMemset(out, 0xff, rows * 1024));
      CHECK(cudaLaunchKernelEx(&config, MLA_KERNEL_SYMBOL, p));
      CHECK(cudaMemcpy(again.data(), out, rows * 1024, cudaMemcpyDeviceToHost));
      different += again != first;
    }
    const double relative = std::sqrt(error / norm);
    good = relative < 4e-2 && worst_lse < 1e-3 && different == 0;
    std::printf(" error %.2e (row %.2e, %lld) lse %.1e different %d", relative, worst_row,
                static_cast<long long>(worst), worst_lse, different);
    CHECK(cudaFree(d_sample));
    CHECK(cudaFree(scratch));
    CHECK(cudaFree(r_out));
    CHECK(cudaFree(r_lse));
  }
  if (o.time) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    config.stream = stream;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 20; ++i) CHECK(cudaLaunchKernelEx(&config, MLA_KERNEL_SYMBOL, p));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int i = 0; i < 23; ++i) {
      CHECK(cudaEventRecord(start, stream));
      CHECK(cudaGraphLaunch(exec, stream));
      CHECK(cudaEventRecord(stop, stream));
      CHECK(cudaEventSynchronize(stop));
      float ms = 0;
      CHECK(cudaEventElapsedTime(&ms, start, stop));
      if (i >= 3) times.push_back(ms / 20 * 1e3f);
    }
    std::sort(times.begin(), times.end());
    const double us = times[times.size() / 2];
    const double tokens = std::accumulate(lens.begin(), lens.end(), 0.0);
    const double flops = 2.0 * q_len * heads * tokens * (576 + 512);
    const double moved = tokens * 576 + q_bytes + rows * 1024.0;
    std::printf("  %9.2f us %7.1f TFLOPS %7.1f GB/s", us, flops / us * 1e-6, moved / us * 1e-3);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
  }
  std::printf("%s\n", good ? "" : "  WRONG");
  for (void* d : {static_cast<void*>(q), static_cast<void*>(kv), static_cast<void*>(d_table),
                  static_cast<void*>(d_lens), static_cast<void*>(out), static_cast<void*>(lse),
                  static_cast<void*>(workspace)}) {
    CHECK(cudaFree(d));
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  bool good = true;
  std::printf("rows %d, %d bytes of shared memory\n", hopper::kRows, hopper::kDynamicSmem);
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (a == "--no-check") {
      o.check = false;
    } else if (a == "--no-time") {
      o.time = false;
    } else if (a == "--check") {
      o.check = true;
    } else if (a == "--page") {
      o.page = std::atoi(value());
    } else if (a == "--splits") {
      o.splits = std::atoi(value());
    } else if (a == "--sigma") {
      o.sigma = std::atof(value());
    } else if (a == "--sink") {
      o.sink = std::atof(value());
    } else if (a == "--sink-at") {
      o.sink_at = std::atoi(value());
    } else {
      good &= run(a, o);
    }
  }
  return good ? 0 : 1;
}

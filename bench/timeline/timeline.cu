// SPDX-License-Identifier: Apache-2.0
//
// Where the time of a Hopper launch goes: clock readings at the points of kernels/common/mark.cuh, by the
// first warp of each role of some CTAs, in the last launch of a graph of 20. A reading costs about 200
// cycles, so a long loop is up to a quarter slower here than in mla-bench; differences between neighbouring
// points are what to look at. The kernel is compiled in, without the loader; results are not checked
// (mla-regression does).
//
//   nvcc -std=c++20 -O3 --expt-relaxed-constexpr -I. -DMLA_ROWS=64 -gencode arch=compute_90a,code=sm_90a
//        bench/timeline/timeline.cu -o timeline
//   ./timeline [--all] batch,seq_len,heads ...      (--all: every point, not the first and last twelve)
#include <cuda.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/mark.cuh"
#undef MLA_MARK

namespace timeline {

#define MLA_POINT(name, text) name,
enum Point : uint32_t { MLA_MARKS(MLA_POINT) };
#undef MLA_POINT
#define MLA_POINT(name, text) text,
constexpr const char* kTexts[] = {MLA_MARKS(MLA_POINT)};
#undef MLA_POINT

constexpr int kCtas = 132, kRoles = 3, kReadings = 1024;
constexpr const char* kRoleNames[kRoles] = {"math", "loader", "scheduler"};
struct Reading {
  uint32_t point, clock;
};
__device__ Reading readings[kCtas][kRoles][kReadings];
__device__ int counts[kCtas][kRoles];
__device__ unsigned long long ends[kCtas][2];

__device__ inline void mark(uint32_t point);

}  // namespace timeline

#define MLA_MARK(point) ::timeline::mark(::timeline::point)
#include "kernels/hopper/mla_decode_hopper.cu"

namespace timeline {

__shared__ int next[kRoles];

__device__ inline void mark(uint32_t point) {
  const int warp = threadIdx.x / 32;
  const int role = warp == 0                             ? 0
                   : warp == mla::hopper::kLoaderWarp    ? 1
                   : warp == mla::hopper::kSchedulerWarp ? 2
                                                         : -1;
  if (threadIdx.x % 32 != 0 || role < 0) return;
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  if (point == kStart) {
    next[role] = 0;
    if (role == 0) ends[blockIdx.x][0] = now;
  }
  if (point == kEnd && role == 0) ends[blockIdx.x][1] = now;
  const int n = next[role]++;
  if (n < kReadings) readings[blockIdx.x][role][n] = Reading{point, static_cast<uint32_t>(clock64())};
  counts[blockIdx.x][role] = n + 1;
}

#define CHECK(call)                                                                              \
  do {                                                                                           \
    const cudaError_t e = (call);                                                                \
    if (e != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                              \
    }                                                                                            \
  } while (0)

__global__ void fill(uint8_t* to, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto uniform = [&](uint64_t x) {
      x = (x + seed) * 0x9e3779b97f4a7c15ull;
      x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
      return (static_cast<uint32_t>((x ^ x >> 27) >> 32) + 1.f) * 0x1p-32f;
    };
    const float u = fminf(uniform(2 * i), 1.f), v = uniform(2 * i + 1);
    to[i] = __nv_cvt_float_to_fp8(sqrtf(-2 * logf(u)) * cospif(2 * v), __NV_SATFINITE, __NV_E4M3);
  }
}

template <class T>
T* device(size_t count) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, count * sizeof(T)));
  return static_cast<T*>(p);
}

mla::TensorMap encode(void* address, uint64_t dim, uint32_t box, CUtensorMapSwizzle swizzle, uint32_t page,
                      uint64_t pages) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult result;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result));
  alignas(64) CUtensorMap map;
  const cuuint64_t dims[3] = {dim, page, pages}, strides[2] = {576, 576 * cuuint64_t{page}};
  const cuuint32_t boxes[3] = {box, page, 1}, ones[3] = {1, 1, 1};
  if (reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f)(
          &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, address, dims, strides, boxes, ones,
          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled failed\n");
    std::exit(1);
  }
  mla::TensorMap out;
  std::memcpy(&out, &map, sizeof(out));
  return out;
}

void run(int batch, int seq_len, int heads, bool all) {
  using namespace mla;
  constexpr int kPage = 64;
  const int per_seq = (seq_len + kPage - 1) / kPage, pages = batch * per_seq;
  std::mt19937 random(7);
  std::vector<int> table(pages), lens(batch, seq_len);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);
  const int64_t q_bytes = int64_t{batch} * heads * 576, kv_bytes = int64_t{pages} * kPage * 576;
  uint8_t *q = device<uint8_t>(q_bytes), *kv = device<uint8_t>(kv_bytes);
  fill<<<1024, 256>>>(q, q_bytes, 1);
  fill<<<1024, 256>>>(kv, kv_bytes, 2);
  int *d_table = device<int>(pages), *d_lens = device<int>(batch);
  uint16_t* out = device<uint16_t>(int64_t{batch} * heads * 512);
  float* lse = device<float>(int64_t{batch} * heads);
  CHECK(cudaMemcpy(d_table, table.data(), pages * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(d_lens, lens.data(), batch * 4, cudaMemcpyHostToDevice));

  CHECK(cudaFuncSetAttribute(MLA_KERNEL_SYMBOL, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             hopper::kDynamicSmem));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCtas);
  config.blockDim = dim3(hopper::kThreads);
  config.dynamicSmemBytes = hopper::kDynamicSmem;
  config.stream = stream;
  int workers = 0;
  CHECK(cudaOccupancyMaxActiveClusters(&workers, MLA_KERNEL_SYMBOL, &config));
  workers = std::min(workers, kCtas / hopper::kClusterSize);
  config.gridDim = dim3(workers * hopper::kClusterSize);
  const uint64_t zeroed = hopper::Layout::kZeroedBytes;
  uint8_t* workspace = device<uint8_t>(zeroed + uint64_t{hopper::Layout::kBytesPerWorker} * workers);
  CHECK(cudaMemset(workspace, 0, zeroed));
  CHECK(cudaMemcpy(workspace, &kWorkspaceMagic, 8, cudaMemcpyHostToDevice));

  DecodeParams p{};
  p.k_map = encode(kv, 576, 64, CU_TENSOR_MAP_SWIZZLE_64B, kPage, pages);
  p.v_map = encode(kv, 512, 128, CU_TENSOR_MAP_SWIZZLE_128B, kPage, pages);
  const auto address = [](const void* a) { return reinterpret_cast<uint64_t>(a); };
  p.q = address(q);
  p.kv = p.v = address(kv);
  p.page_table = address(d_table);
  p.seq_lens = address(d_lens);
  p.out = address(out);
  p.lse = address(lse);
  p.workspace = address(workspace);
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
  p.q_len = 1;
  p.heads = heads;
  p.pages = pages;
  p.max_pages_per_seq = per_seq;
  p.page_size = kPage;
  p.page_magic = page_divisor(kPage).magic;
  p.page_shift = page_divisor(kPage).shift;
  p.box_tokens_log2 = 6;
  p.causal = 1;

  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 20; ++i) CHECK(cudaLaunchKernelEx(&config, MLA_KERNEL_SYMBOL, p));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));

  static Reading host[kCtas][kRoles][kReadings];
  static int n[kCtas][kRoles];
  static unsigned long long times[kCtas][2];
  CHECK(cudaMemcpyFromSymbol(host, readings, sizeof(host)));
  CHECK(cudaMemcpyFromSymbol(n, counts, sizeof(n)));
  CHECK(cudaMemcpyFromSymbol(times, ends, sizeof(times)));
  const int ctas = static_cast<int>(config.gridDim.x);
  unsigned long long first = ~0ull, started = 0, ended = 0;
  for (int c = 0; c < ctas; ++c) {
    first = std::min(first, times[c][0]);
    started = std::max(started, times[c][0]);
    ended = std::max(ended, times[c][1]);
  }
  std::printf("%d,%d,%d: %d CTAs of %d rows begin within %llu ns, the last one ends after %llu ns\n", batch,
              seq_len, heads, ctas, hopper::kCtaRows, started - first, ended - first);
  for (const int cta : {0, ctas / 2}) {
    for (int role = 0; role < kRoles; ++role) {
      const int count = std::min(n[cta][role], kReadings);
      const uint32_t zero = host[cta][0][0].clock;
      uint32_t before = zero;
      for (int i = 0; i < count; ++i) {
        const Reading& r = host[cta][role][i];
        if (all || i < 12 || i >= count - 12) {
          std::printf("  CTA %3d %-9s %8d  +%6d  %s\n", cta, kRoleNames[role],
                      static_cast<int>(r.clock - zero), static_cast<int>(r.clock - before), kTexts[r.point]);
        }
        before = r.clock;
      }
    }
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  for (void* d : {static_cast<void*>(q), static_cast<void*>(kv), static_cast<void*>(d_table),
                  static_cast<void*>(d_lens), static_cast<void*>(out), static_cast<void*>(lse),
                  static_cast<void*>(workspace)}) {
    CHECK(cudaFree(d));
  }
}

}  // namespace timeline

int main(int argc, char** argv) {
  bool all = false;
  for (int i = 1; i < argc; ++i) {
    int batch, seq_len, heads;
    if (std::string(argv[i]) == "--all") {
      all = true;
    } else if (std::sscanf(argv[i], "%d,%d,%d", &batch, &seq_len, &heads) == 3 && batch > 0 && seq_len > 0 &&
               heads > 0 && heads <= 128) {
      timeline::run(batch, seq_len, heads, all);
    } else {
      std::fprintf(stderr, "timeline: \"%s\" is neither --all nor batch,seq_len,heads\n", argv[i]);
      return 2;
    }
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The cluster kernel in a program of its own, for a debugger, a profiler or compute-sanitizer:
// random data, float64 reference on the GPU, error, determinism, time. The regression suite goes
// through the loader instead. The parameters are filled here, not by the loader's function: this is
// one file for nvcc, without a library.
//
//   nvcc -std=c++20 -O3 -I. -gencode arch=compute_90a,code=sm_90a tests/kernels/cluster_debug.cu
//   ./a.out batch q_len seq_len heads page_size [max_splits] [workers] [ragged] [repeats]
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cluster/mla_decode_cluster.cu"

#define CHECK(call)                                                                              \
  do {                                                                                           \
    const cudaError_t e = (call);                                                                \
    if (e != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                              \
    }                                                                                            \
  } while (0)

namespace {

using mla::DecodeParams;

__device__ double decode_e4m3(uint8_t v) {
  const int exponent = (v >> 3) & 15, mantissa = v & 7;
  if (exponent == 15 && mantissa == 7) return nan("");
  const double m = exponent == 0 ? ldexp(mantissa / 8.0, -6) : ldexp(1 + mantissa / 8.0, exponent - 7);
  return v & 0x80 ? -m : m;
}

// One block a query row.
__global__ void reference(DecodeParams p, const uint8_t* kv, double* scratch, int capacity, double* out,
                          double* lse) {
  const int heads = p.heads, row = blockIdx.x;
  const int b = row / (p.q_len * heads), t = row / heads % p.q_len;
  const int seq = reinterpret_cast<const int*>(p.seq_lens)[b];
  const int visible = min(mla::visible_positions(seq, p.q_len, t, 1), capacity);
  const int* pages = reinterpret_cast<const int*>(p.page_table) + b * p.page_table_stride;
  double* score = scratch + static_cast<int64_t>(row) * capacity;
  const uint8_t* q = reinterpret_cast<const uint8_t*>(p.q) + static_cast<int64_t>(row) * 576;
  __shared__ double qd[576];
  __shared__ double reduced[2];
  for (int i = threadIdx.x; i < 576; i += blockDim.x) qd[i] = decode_e4m3(q[i]);
  __syncthreads();
  const double scale = static_cast<double>(p.softmax_scale) * p.q_scale * p.kv_scale;
  for (int i = threadIdx.x; i < visible; i += blockDim.x) {
    const int page = pages[i / p.page_size];
    double s = -INFINITY;
    if (page >= 0 && page < p.pages) {
      const uint8_t* k = kv + (static_cast<int64_t>(page) * p.page_size + i % p.page_size) * 576;
      s = 0;
      for (int d = 0; d < 576; ++d) s += qd[d] * decode_e4m3(k[d]);
      s *= scale;
    }
    score[i] = s;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double m = -INFINITY, l = 0;
    for (int i = 0; i < visible; ++i) m = fmax(m, score[i]);
    for (int i = 0; i < visible; ++i) l += exp(score[i] - m);
    reduced[0] = m;
    reduced[1] = l;
    lse[row] = m == -INFINITY ? -INFINITY : m + log(l);
  }
  __syncthreads();
  const double m = reduced[0], l = reduced[1];
  for (int d = threadIdx.x; d < 512; d += blockDim.x) {
    double o = 0;
    for (int i = 0; i < visible && m != -INFINITY; ++i) {
      const int page = pages[i / p.page_size];
      if (page < 0 || page >= p.pages) continue;
      o += exp(score[i] - m) *
           decode_e4m3(kv[(static_cast<int64_t>(page) * p.page_size + i % p.page_size) * 576 + d]);
    }
    out[static_cast<int64_t>(row) * 512 + d] = m == -INFINITY ? 0 : p.kv_scale * o / l;
  }
}

template <class T>
T* device(const std::vector<T>& v) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, v.size() * sizeof(T)));
  CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

uint8_t encode_e4m3(float x) {
  uint8_t best = 0;
  const float a = std::min(std::fabs(x), 448.f);
  if (a >= std::ldexp(1.f, -10)) {
    int e = std::max(-6, static_cast<int>(std::floor(std::log2(a))));
    int m = static_cast<int>(std::nearbyint(std::ldexp(a, 3 - e)));
    if (m == 16) m = 8, ++e;
    best = m < 8 ? m : ((e + 7) << 3) | (m - 8);
  }
  return best | (x < 0 ? 0x80 : 0);
}

void encode_map(mla::TensorMap* map, void* base, int dim, int box, CUtensorMapSwizzle swizzle, int page_size,
                int box_tokens, int pages) {
  static CUresult (*encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) = nullptr;
  if (encode == nullptr) {
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void**>(&encode), 12000,
                                           cudaEnableDefault, &found));
  }
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(page_size),
                              static_cast<cuuint64_t>(pages)};
  const cuuint64_t strides[2] = {576, static_cast<cuuint64_t>(page_size) * 576};
  const cuuint32_t boxes[3] = {static_cast<cuuint32_t>(box), static_cast<cuuint32_t>(box_tokens), 1};
  const cuuint32_t ones[3] = {1, 1, 1};
  const CUresult r = encode(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, base, dims,
                            strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: %d\n", r);
    std::exit(1);
  }
}

float bf16(uint16_t v) {
  const uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

}  // namespace

int main(int argc, char** argv) {
  auto arg = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int batch = arg(1, 4), q_len = arg(2, 1), seq = arg(3, 1000), heads = arg(4, 128);
  const int page_size = arg(5, 64), max_splits = arg(6, 0), worker_cap = arg(7, 0), ragged = arg(8, 0);
  const int repeats = arg(9, 100);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.f, 1.f);

  const int max_pages = std::max(1, (seq + page_size - 1) / page_size);
  const int pages = batch * max_pages + 3;
  std::vector<uint8_t> table(4096);
  for (auto& v : table) v = encode_e4m3(normal(rng));
  std::vector<uint8_t> kv(static_cast<size_t>(pages) * page_size * 576, 0x7f);
  std::vector<uint8_t> q(static_cast<size_t>(batch) * q_len * heads * 576);
  for (auto& v : q) v = table[rng() & 4095];
  std::vector<int> order(pages), page_table(static_cast<size_t>(batch) * max_pages), seq_lens(batch);
  for (int i = 0; i < pages; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  int next = 0;
  for (int b = 0; b < batch; ++b) {
    seq_lens[b] = ragged ? (b == 0 ? 0 : seq / 8 + static_cast<int>(rng() % (seq - seq / 8 + 1))) : seq;
    for (int i = 0; i < max_pages; ++i) {
      const int used = i * page_size < seq_lens[b];
      page_table[static_cast<size_t>(b) * max_pages + i] = used ? order[next++] : (i & 1 ? 0x7fffffff : -7);
      if (!used) continue;
      uint8_t* page = kv.data() + static_cast<size_t>(order[next - 1]) * page_size * 576;
      const int tokens = std::min(page_size, seq_lens[b] - i * page_size);
      for (int j = 0; j < tokens * 576; ++j) page[j] = table[rng() & 4095];
    }
  }

  cudaError_t error;
  int workers = mla::cluster::max_clusters(&error);
  CHECK(error);
  std::printf("clusters resident: %d, dynamic smem %d\n", workers, mla::cluster::kDynamicSmem);
  if (worker_cap > 0) workers = std::min(workers, worker_cap);

  const size_t rows = static_cast<size_t>(batch) * q_len * heads;
  uint8_t* d_kv = device(kv);
  uint16_t* d_out = device(std::vector<uint16_t>(rows * 512, 0x7fff));
  float* d_lse = device(std::vector<float>(rows, NAN));
  uint32_t* d_bad = device(std::vector<uint32_t>(1, 0));
  using mla::cluster::Partials;
  const uint64_t workspace_bytes =
      Partials::kZeroedBytes + static_cast<uint64_t>(workers) * Partials::kBytesPerWorker;
  uint8_t* workspace;
  CHECK(cudaMalloc(&workspace, workspace_bytes));
  CHECK(cudaMemset(workspace, 0xff, workspace_bytes));
  CHECK(cudaMemset(workspace, 0, Partials::kZeroedBytes));
  CHECK(cudaMemcpy(workspace, &mla::kWorkspaceMagic, sizeof(mla::kWorkspaceMagic), cudaMemcpyHostToDevice));

  DecodeParams p{};
  const int box_tokens = std::gcd(page_size, mla::cluster::kTileTokens);
  encode_map(&p.k_map, d_kv, 576, mla::cluster::kKBox, CU_TENSOR_MAP_SWIZZLE_NONE, page_size, box_tokens,
             pages);
  encode_map(&p.v_map, d_kv, 512, mla::cluster::kVBox, CU_TENSOR_MAP_SWIZZLE_128B, page_size, box_tokens,
             pages);
  p.q = reinterpret_cast<uint64_t>(device(q));
  p.page_table = reinterpret_cast<uint64_t>(device(page_table));
  p.seq_lens = reinterpret_cast<uint64_t>(device(seq_lens));
  p.out = reinterpret_cast<uint64_t>(d_out);
  p.lse = reinterpret_cast<uint64_t>(d_lse);
  p.workspace = reinterpret_cast<uint64_t>(workspace);
  p.partials = p.workspace + Partials::kZeroedBytes;
  p.bad_page_counter = reinterpret_cast<uint64_t>(d_bad);
  p.page_table_stride = max_pages;
  p.softmax_scale = 1.f / std::sqrt(576.f);
  p.q_scale = 0.75f;
  p.kv_scale = 1.5f;
  p.batch = batch;
  p.q_len = q_len;
  p.heads = heads;
  p.pages = pages;
  p.max_pages_per_seq = max_pages;
  p.page_size = page_size;
  p.page_magic = mla::page_divisor(page_size).magic;
  p.page_shift = mla::page_divisor(page_size).shift;
  p.box_tokens_log2 = static_cast<uint32_t>(std::log2(box_tokens));
  p.causal = 1;
  p.q_head_stride = 576;
  p.q_token_stride = 576 * heads;
  p.out_head_stride = 512 * sizeof(uint16_t);
  p.out_token_stride = p.out_head_stride * heads;
  p.lse_head_stride = 1;
  p.lse_token_stride = heads;
  p.max_splits = max_splits;

  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(mla::cluster::launch(p, workers, stream));
  CHECK(cudaStreamSynchronize(stream));
  std::vector<uint16_t> out(rows * 512), again(rows * 512);
  std::vector<float> lse(rows);
  CHECK(cudaMemcpy(out.data(), d_out, out.size() * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(lse.data(), d_lse, rows * 4, cudaMemcpyDeviceToHost));

  int differ = 0;
  for (int i = 0; i < repeats; ++i) {
    CHECK(cudaMemsetAsync(d_out, 0xff, out.size() * 2, stream));
    CHECK(mla::cluster::launch(p, workers, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(again.data(), d_out, out.size() * 2, cudaMemcpyDeviceToHost));
    if (again == out) continue;
    ++differ;
    if (differ > 3) continue;
    size_t rows_off = 0;
    for (size_t r = 0; r < rows; ++r) {
      int columns = 0, first = -1, last = -1;
      float most = 0;
      for (int d = 0; d < 512; ++d) {
        if (again[r * 512 + d] == out[r * 512 + d]) continue;
        if (first < 0) first = d;
        last = d;
        ++columns;
        const float x = std::fabs(bf16(again[r * 512 + d]) - bf16(out[r * 512 + d]));
        if (!(x <= most)) most = x;
      }
      if (columns == 0) continue;
      if (rows_off++ % 16 == 0 && rows_off < 600) {
        const int b = static_cast<int>(r / (static_cast<size_t>(q_len) * heads));
        std::printf("  repeat %d: request %d (seq_len %d) head %d: %d columns differ, %d...%d, by up to %g\n",
                    i, b, seq_lens[b], static_cast<int>(r % heads), columns, first, last, most);
      }
    }
    std::printf("  repeat %d: %zu rows differ\n", i, rows_off);
  }
  std::vector<uint8_t> counters(Partials::kZeroedBytes);
  CHECK(cudaMemcpy(counters.data(), workspace, counters.size(), cudaMemcpyDeviceToHost));
  const bool clean = std::all_of(counters.begin() + sizeof(mla::kWorkspaceMagic), counters.end(),
                                 [](uint8_t v) { return v == 0; });

  int failures = differ + !clean;
  const int capacity = max_pages * page_size;
  if (rows * capacity < 400'000'000) {
    double *d_ref, *d_ref_lse, *d_scratch;
    CHECK(cudaMalloc(&d_ref, rows * 512 * 8));
    CHECK(cudaMalloc(&d_ref_lse, rows * 8));
    CHECK(cudaMalloc(&d_scratch, rows * capacity * 8));
    reference<<<rows, 128, 0, stream>>>(p, d_kv, d_scratch, capacity, d_ref, d_ref_lse);
    CHECK(cudaGetLastError());
    std::vector<double> ref(rows * 512), ref_lse(rows);
    CHECK(cudaMemcpyAsync(ref.data(), d_ref, ref.size() * 8, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(ref_lse.data(), d_ref_lse, rows * 8, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    double e2 = 0, r2 = 0, worst = 0, worst_lse = 0;
    for (size_t r = 0; r < rows; ++r) {
      double re2 = 0, rr2 = 0;
      for (int d = 0; d < 512; ++d) {
        const double x = bf16(out[r * 512 + d]) - ref[r * 512 + d];
        re2 += x * x;
        rr2 += ref[r * 512 + d] * ref[r * 512 + d];
      }
      e2 += re2;
      r2 += rr2;
      const double row_error = rr2 == 0 ? std::sqrt(re2) : std::sqrt(re2 / rr2);
      if (!(row_error <= worst)) worst = row_error;
      const double x = lse[r] == ref_lse[r] ? 0 : std::fabs(lse[r] - ref_lse[r]);
      if (!(x <= worst_lse)) worst_lse = x;
    }
    std::printf("relative L2 error %.3e (worst row %.3e), LSE error %.3e\n", std::sqrt(e2 / r2), worst,
                worst_lse);
    if (!(std::sqrt(e2 / std::max(r2, 1e-30)) < 3e-2) || !(worst_lse < 1e-3)) ++failures;
  }

  float ms = 0;
  if (repeats > 0) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 20; ++i) CHECK(mla::cluster::launch(p, workers, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    std::vector<float> times;
    for (int i = 0; i < 12; ++i) {
      CHECK(cudaEventRecord(a, stream));
      CHECK(cudaGraphLaunch(exec, stream));
      CHECK(cudaEventRecord(b, stream));
      CHECK(cudaStreamSynchronize(stream));
      CHECK(cudaEventElapsedTime(&ms, a, b));
      times.push_back(ms / 20);
    }
    std::sort(times.begin(), times.end());
    ms = times[times.size() / 2];
  }
  std::printf(
      "%s b %d q %d S %d h %d page %d splits<=%d: %.1f us a launch, repeats that differ %d/%d, "
      "counters %s\n",
      failures == 0 ? "OK  " : "FAIL", batch, q_len, seq, heads, page_size, max_splits, ms * 1e3, differ,
      repeats, clean ? "clean" : "DIRTY");
  return failures != 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decode step of MLA attention on random data, from C: open a bundle, prepare the kernel for the
 * current device, launch, and compare one head with a plain evaluation of the formula.
 *
 *   cc decode.c -lmla_loader -lcuda -lm -o decode
 *   ./decode path/to/bundle
 */
#include <cuda.h>
#include <math.h>
#include <mla_loader.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_CUDA(call)                                                \
  do {                                                                  \
    CUresult result = (call);                                           \
    if (result != CUDA_SUCCESS) {                                       \
      fprintf(stderr, "%s failed with error %d\n", #call, (int)result); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)
#define CHECK_MLA(call)                                                                  \
  do {                                                                                   \
    mla_status status = (call);                                                          \
    if (status != MLA_SUCCESS) {                                                         \
      fprintf(stderr, "%s: %s: %s\n", #call, mla_status_name(status), mla_last_error()); \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

enum { BATCH = 2, HEADS = 128, PAGE_SIZE = 64, PAGES = 8, MAX_PAGES = 3, DIM_K = 576, DIM_V = 512 };
/* 1/sqrt(192): DeepSeek's heads have 128 + 64 elements before absorption. */
#define SOFTMAX_SCALE 0.07216878f

static const int32_t seq_lens[BATCH] = {130, 5};
static const int32_t page_table[BATCH][MAX_PAGES] = {{6, 1, 3}, {4, 0, 0}};
static uint8_t q[BATCH][HEADS][DIM_K];      /* e4m3 */
static uint8_t kv[PAGES][PAGE_SIZE][DIM_K]; /* e4m3: 512 latent values, 64 rope values */
static uint16_t out[BATCH][HEADS][DIM_V];   /* bf16 */
static float lse[BATCH][HEADS];

static double from_e4m3(uint8_t code) {
  int exponent = (code >> 3) & 15, mantissa = code & 7;
  double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  return code & 0x80 ? -value : value;
}

static double from_bf16(uint16_t code) {
  uint32_t bits = (uint32_t)code << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static void fill(uint8_t* codes, size_t count) { /* magnitudes from 2^-3 to just below 2 */
  for (size_t i = 0; i < count; ++i) codes[i] = (uint8_t)((rand() & 0x80) | (0x20 + rand() % 32));
}

static CUdeviceptr upload(const void* data, size_t bytes) {
  CUdeviceptr address;
  CHECK_CUDA(cuMemAlloc(&address, bytes));
  CHECK_CUDA(cuMemcpyHtoD(address, data, bytes));
  return address;
}

/* Relative error of one head of one request against the formula in double precision. */
static double error_of(int request, int head, double softmax_scale) {
  double sum = 0, difference = 0, norm = 0;
  static double want[DIM_V];
  memset(want, 0, sizeof(want));
  for (int i = 0; i < seq_lens[request]; ++i) {
    const uint8_t* token = kv[page_table[request][i / PAGE_SIZE]][i % PAGE_SIZE];
    double score = 0;
    for (int d = 0; d < DIM_K; ++d) score += from_e4m3(q[request][head][d]) * from_e4m3(token[d]);
    double weight = exp(score * softmax_scale);
    sum += weight;
    for (int d = 0; d < DIM_V; ++d) want[d] += weight * from_e4m3(token[d]);
  }
  for (int d = 0; d < DIM_V; ++d) {
    want[d] /= sum;
    difference += pow(from_bf16(out[request][head][d]) - want[d], 2);
    norm += want[d] * want[d];
  }
  printf("request %d, head %3d: lse %.4f, expected %.4f\n", request, head, lse[request][head], log(sum));
  return sqrt(difference / norm);
}

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  CHECK_CUDA(cuInit(0));
  CHECK_CUDA(cuDeviceGet(&device, 0));
  CHECK_CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_CUDA(cuCtxSetCurrent(context));

  fill(&q[0][0][0], sizeof(q));
  fill(&kv[0][0][0], sizeof(kv));

  /* [decode] */
  mla_bundle* bundle;
  CHECK_MLA(mla_bundle_open(argc > 1 ? argv[1] : NULL, NULL, &bundle));

  mla_problem problem = MLA_PROBLEM_INIT; /* 0 means e4m3 inputs, bf16 output, 576/512, q_len 1 */
  problem.heads = HEADS;
  problem.page_size = PAGE_SIZE;
  problem.batch = BATCH; /* hints: few or short requests go to kernels of fewer rows */
  problem.seq_len = MAX_PAGES * PAGE_SIZE;
  mla_kernel* kernel; /* once per device */
  CHECK_MLA(mla_prepare(bundle, &problem, NULL, &kernel));

  uint64_t workspace_bytes; /* enough for every kernel of the bundle on this device */
  CHECK_MLA(mla_workspace_bytes(bundle, NULL, &workspace_bytes));
  CUdeviceptr workspace; /* once per stream */
  CHECK_CUDA(cuMemAlloc(&workspace, workspace_bytes));
  CHECK_MLA(mla_workspace_init(bundle, workspace, workspace_bytes, NULL));

  mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  args.q = upload(q, sizeof(q));
  args.kv = upload(kv, sizeof(kv));
  args.page_table = upload(page_table, sizeof(page_table));
  args.seq_lens = upload(seq_lens, sizeof(seq_lens));
  args.out = upload(out, sizeof(out));
  args.lse = upload(lse, sizeof(lse));
  args.workspace = workspace;
  args.workspace_bytes = workspace_bytes;
  args.pages = PAGES;
  args.batch = BATCH;
  args.heads = HEADS;
  args.page_size = PAGE_SIZE;
  args.max_pages_per_seq = MAX_PAGES;
  args.softmax_scale = SOFTMAX_SCALE;         /* nothing is hidden in the kernel */
  CHECK_MLA(mla_launch(kernel, &args, NULL)); /* every decode step; may be captured in a graph */
  /* [decode] */

  CHECK_CUDA(cuCtxSynchronize());
  CHECK_CUDA(cuMemcpyDtoH(out, args.out, sizeof(out)));
  CHECK_CUDA(cuMemcpyDtoH(lse, args.lse, sizeof(lse)));

  double worst = 0;
  for (int request = 0; request < BATCH; ++request) {
    for (int head = 0; head < HEADS; head += 127) worst = fmax(worst, error_of(request, head, SOFTMAX_SCALE));
  }
  printf("relative error of out: %.2e\n", worst);

  const CUdeviceptr buffers[] = {args.q,   args.kv,  args.page_table, args.seq_lens,
                                 args.out, args.lse, args.workspace};
  for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); ++i) CHECK_CUDA(cuMemFree(buffers[i]));
  CHECK_MLA(mla_bundle_close(bundle));
  CHECK_CUDA(cuDevicePrimaryCtxRelease(device));
  return worst < 0.03 ? 0 : 1;
}

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One decode step of MLA attention on random data, from Python's standard library alone.

    python3 decode.py path/to/libmla_loader.so path/to/bundle
"""
import array
import ctypes
import ctypes.util
import math
import os
import random
import struct
import sys
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p

import mla_abi  # made from the header: structs, constants and types of the functions

BATCH, HEADS, PAGE_SIZE, PAGES, MAX_PAGES = 2, 128, 32, 9, 5
SEQ_LENS = [130, 7]
PAGE_TABLE = [[6, 1, 3, 8, 2], [4, 0, 0, 0, 0]]
SOFTMAX_SCALE = 192**-0.5  # DeepSeek's heads have 128 + 64 elements before absorption


def from_e4m3(code):
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
    return -value if code & 0x80 else value


def random_e4m3(count):  # magnitudes from 2^-3 to just below 2
    return bytes(random.choice((0, 0x80)) | random.randrange(0x20, 0x40) for _ in range(count))


def main():
    random.seed(1)
    cuda = ctypes.CDLL(os.environ.get("MLA_CUDA_DRIVER_PATH") or "libcuda.so.1")
    mla = mla_abi.bind(*sys.argv[1:2])

    def check(result):
        if result != 0:
            raise SystemExit(f"the CUDA driver returned error {result}")

    def check_mla(status):
        if status != 0:
            raise SystemExit(f"{mla.mla_status_name(status).decode()}: {mla.mla_last_error().decode()}")

    def allocate(size):
        address = c_uint64()
        check(cuda.cuMemAlloc_v2(byref(address), c_size_t(size)))
        return address.value

    def upload(data):
        address = allocate(len(data))
        check(cuda.cuMemcpyHtoD_v2(c_uint64(address), data, c_size_t(len(data))))
        return address

    device, context = c_int32(), c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    check(cuda.cuCtxSetCurrent(context))

    q = random_e4m3(BATCH * HEADS * 576)
    kv = random_e4m3(PAGES * PAGE_SIZE * 576)
    table = array.array("i", sum(PAGE_TABLE, [])).tobytes()
    lens = array.array("i", SEQ_LENS).tobytes()

    # [decode]
    bundle = c_void_p()
    path = sys.argv[2].encode() if len(sys.argv) > 2 else None
    check_mla(mla.mla_bundle_open(path, None, byref(bundle)))

    problem = mla_abi.Problem(heads=HEADS, page_size=PAGE_SIZE, batch=BATCH,
                              seq_len=MAX_PAGES * PAGE_SIZE)  # batch, seq_len: hints
    kernel = c_void_p()
    check_mla(mla.mla_prepare(bundle, byref(problem), None, byref(kernel)))

    workspace_bytes = c_uint64()
    check_mla(mla.mla_workspace_bytes(bundle, None, byref(workspace_bytes)))
    workspace = allocate(workspace_bytes.value)
    check_mla(mla.mla_workspace_init(bundle, workspace, workspace_bytes, None))

    args = mla_abi.LaunchArgs(q=upload(q), kv=upload(kv), page_table=upload(table), seq_lens=upload(lens),
                              out=allocate(BATCH * HEADS * 512 * 2), lse=allocate(BATCH * HEADS * 4),
                              workspace=workspace, workspace_bytes=workspace_bytes.value, pages=PAGES,
                              batch=BATCH, heads=HEADS, page_size=PAGE_SIZE, max_pages_per_seq=MAX_PAGES,
                              softmax_scale=SOFTMAX_SCALE)
    check_mla(mla.mla_launch(kernel, byref(args), None))
    # [decode]

    check(cuda.cuCtxSynchronize())
    out = ctypes.create_string_buffer(BATCH * HEADS * 512 * 2)
    check(cuda.cuMemcpyDtoH_v2(out, c_uint64(args.out), c_size_t(len(out))))

    worst = 0.0
    for request, head in ((0, 0), (0, 127), (1, 64)):
        row = request * HEADS + head
        query = [from_e4m3(code) for code in q[row * 576:(row + 1) * 576]]
        total, want = 0.0, [0.0] * 512
        for i in range(SEQ_LENS[request]):
            at = (PAGE_TABLE[request][i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE) * 576
            token = [from_e4m3(code) for code in kv[at:at + 576]]
            weight = math.exp(SOFTMAX_SCALE * sum(a * b for a, b in zip(query, token)))
            total += weight
            want = [w + weight * t for w, t in zip(want, token)]
        got = [struct.unpack("<f", b"\0\0" + out.raw[2 * i:2 * i + 2])[0] for i in range(row * 512, (row + 1) * 512)]
        want = [w / total for w in want]
        error = math.sqrt(sum((g - w) ** 2 for g, w in zip(got, want)) / sum(w * w for w in want))
        print(f"request {request}, head {head:3}: relative error {error:.2e}")
        worst = max(worst, error)

    check_mla(mla.mla_bundle_close(bundle))
    return 0 if worst < 0.03 else 1


if __name__ == "__main__":
    sys.exit(main())

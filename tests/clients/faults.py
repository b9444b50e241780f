#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users ran into, as they would from Python: on every decode kernel of a bundle that the device takes, with
one workspace for all of them.

usage: faults.py LOADER BUNDLE SOURCE_DIR
"""
import array
import ctypes
import os
import sys
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p

LOADER, BUNDLE, SOURCE = sys.argv[1:]
sys.dont_write_bytecode = True
sys.path.insert(0, f"{SOURCE}/examples")
import mla_abi  # noqa: E402

HEADS, PAGE_SIZE, PAGES, TOKENS = 16, 48, 16, 700
ONE = b"\x80\x3f"  # bf16

cuda = ctypes.CDLL(os.environ["MLA_CUDA_DRIVER_PATH"])
mla = mla_abi.bind(LOADER)


def check(result):
    assert result == 0, f"the CUDA driver returned error {result}"


def check_mla(status):
    assert status == 0, f"{mla.mla_status_name(status).decode()}: {mla.mla_last_error().decode()}"


def upload(data):
    address = c_uint64()
    check(cuda.cuMemAlloc_v2(byref(address), c_size_t(len(data))))
    check(cuda.cuMemcpyHtoD_v2(address, data, c_size_t(len(data))))
    return address.value


def download(address, size):
    check(cuda.cuCtxSynchronize())
    data = ctypes.create_string_buffer(size)
    check(cuda.cuMemcpyDtoH_v2(data, c_uint64(address), c_size_t(size)))
    return data.raw


def is_nan(out):
    return all(out[i + 1] & 0x7F == 0x7F and out[i] > 0x80 for i in range(0, len(out), 2))


def stream(flags):
    made = c_void_p()
    check(cuda.cuStreamCreate(byref(made), flags))
    return made


def main():
    context = c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), c_int32(0)))
    check(cuda.cuCtxSetCurrent(context))
    bundle = c_void_p()
    check_mla(mla.mla_bundle_open(BUNDLE.encode(), None, byref(bundle)))

    # A capture on a blocking stream is seen and not harmed; one on a non-blocking stream of this very
    # thread cannot be seen, and the load does not harm it either.
    kernel, problem = c_void_p(), mla_abi.Problem(heads=HEADS, page_size=PAGE_SIZE)
    for flags, expected in ((0, mla_abi.MLA_ERROR_NOT_PREPARED), (1, mla_abi.MLA_SUCCESS)):
        captured, graph = stream(flags), c_void_p()
        check(cuda.cuStreamBeginCapture_v2(captured, 0))
        assert mla.mla_prepare(bundle, byref(problem), None, byref(kernel)) == expected, mla.mla_last_error()
        check(cuda.cuStreamEndCapture(captured, byref(graph)))

    size = c_uint64()
    check_mla(mla.mla_workspace_bytes(bundle, None, byref(size)))
    # Never initialised: filled with 2.
    workspace = upload(b"\x02" * size.value)
    # All keys and values are 1, so every output is 1 whatever the weights.
    args = mla_abi.LaunchArgs(
        q=upload(bytes([0x30]) * (HEADS * 576)), kv=upload(bytes([0x38]) * (PAGES * PAGE_SIZE * 576)),
        page_table=upload(array.array("i", reversed(range(PAGES))).tobytes()),
        seq_lens=upload(array.array("i", [TOKENS]).tobytes()), out=upload(bytes(HEADS * 1024)), workspace=workspace,
        workspace_bytes=size.value, pages=PAGES, batch=1, heads=HEADS, page_size=PAGE_SIZE, max_pages_per_seq=PAGES,
        softmax_scale=192**-0.5)
    one_stream = stream(1)

    def launch(kernel):
        check_mla(mla.mla_launch(kernel, byref(args), one_stream))
        return download(args.out, HEADS * 1024)

    info = mla_abi.BundleInfo()
    check_mla(mla.mla_bundle_get_info(bundle, byref(info)))
    kernels, described = [], mla_abi.KernelInfo()
    for index in range(info.kernel_count):
        check_mla(mla.mla_bundle_get_kernel(bundle, index, byref(described)))
        if described.kind != mla_abi.MLA_KIND_DECODE:
            continue
        status = mla.mla_prepare_index(bundle, index, None, byref(kernel))
        if status != mla_abi.MLA_ERROR_NO_KERNEL:
            check_mla(status)
            kernels.append(kernel.value)
            prepared = mla_abi.PreparedInfo()
            check_mla(mla.mla_kernel_get_info(kernel, byref(prepared)))
            assert prepared.workspace_bytes <= size.value, f"kernel {index} needs {prepared.workspace_bytes} bytes"
    assert kernels, "the device takes no kernel of the bundle"
    for kernel in kernels:
        assert is_nan(launch(kernel)), "a workspace that was never initialised went unnoticed"
    check_mla(mla.mla_workspace_init(bundle, workspace, size, one_stream))
    for max_splits in (0, 1, 2**31 - 1, 0):
        args.max_splits = max_splits
        for kernel in kernels:
            assert launch(kernel) == ONE * (HEADS * 512), f"wrong with max_splits {max_splits}"
    # Factors that overflow two by two although the product is small.
    args.max_splits, args.softmax_scale, args.q_scale, args.kv_scale = 0, 1e25, 1e-25, 1.0
    for kernel in kernels:
        assert launch(kernel) == ONE * (HEADS * 512), "wrong with extreme scales"

    check_mla(mla.mla_bundle_close(bundle))
    assert mla.mla_bundle_close(bundle) == mla_abi.MLA_ERROR_INVALID_ARGUMENT, "a bundle was closed twice"
    print(f"{len(kernels)} kernels, a workspace of {size.value} bytes")


if __name__ == "__main__":
    main()

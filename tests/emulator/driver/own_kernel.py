#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of the CUDA driver API, written as for a GPU: doubles numbers with a kernel of its own.

    own_kernel.py kernel.ptx     (or a cubin, with its PTX in MLA_EMU_PTX_PATH)
"""
import sys

# [decode] the text between these marks stands in docs/emulator.md
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        raise SystemExit(f"{name} failed: {result}")


context, module, function, data = (ctypes.c_void_p() for _ in range(4))
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
with open(sys.argv[1], "rb") as image:
    call("cuModuleLoadData", ctypes.byref(module), image.read() + b"\0")
call("cuModuleGetFunction", ctypes.byref(function), module, b"twice")

numbers = (ctypes.c_float * 256)(*range(256))
call("cuMemAlloc_v2", ctypes.byref(data), ctypes.sizeof(numbers))
call("cuMemcpyHtoD_v2", data, numbers, ctypes.sizeof(numbers))
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(data))
call("cuLaunchKernel", function, 2, 1, 1, 128, 1, 1, 0, None, arguments, None)
call("cuCtxSynchronize")
call("cuMemcpyDtoH_v2", numbers, data, ctypes.sizeof(numbers))
# [decode]

assert list(numbers) == [2.0 * i for i in range(256)], list(numbers)
print("256 numbers doubled")

"""Runs a tiny kernel on each GPU with the driver's own library, without torch, whose import costs seconds.

After an error in a kernel, every later call in the same context fails, so the caller runs this in a child.
"""

from __future__ import annotations

import ctypes

THREADS = 64
# out[i] = i * i; the driver compiles it for any GPU since sm_50.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry square(.param .u64 out)
{
    .reg .u32 %r<3>;
    .reg .u64 %d<4>;
    ld.param.u64 %d1, [out];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.u64 %d2, %d2, %d3;
    mul.lo.u32 %r2, %r1, %r1;
    st.global.u32 [%d2], %r2;
    ret;
}
"""


def run_kernels() -> int:
    """Return the number of visible GPUs, on each of which the kernel gave the right numbers. Raises `OSError`."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise OSError("%s returned %d" % (name, status))

    count = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        memory, numbers = ctypes.c_uint64(), (ctypes.c_uint32 * THREADS)()
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        call("cuCtxSetCurrent", context)
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        call("cuModuleGetFunction", ctypes.byref(function), module, b"square")
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.sizeof(numbers))
        call("cuLaunchKernel", function, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
        call("cuMemcpyDtoH_v2", numbers, memory, ctypes.sizeof(numbers))
        if list(numbers) != [number * number for number in range(THREADS)]:
            raise OSError("GPU %d computes wrong numbers" % ordinal)
    return count.value

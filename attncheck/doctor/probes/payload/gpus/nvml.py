"""Queries the driver through NVML if there is no nvidia-smi; only for use in a child, because any library may crash.

Functions and structures follow NVIDIA's nvml.h. Every one used here has been in NVML since R450 or earlier.
"""

from __future__ import annotations

from typing import Any

from ..facts import absent, describe_error, known, unreadable

LIBRARY = "libnvidia-ml.so.1"


class NvmlError(Exception):
    """A failed NVML call, with NVML's own message."""


class Nvml:
    """The loaded library. Raises `OSError` if there is none."""

    def __init__(self) -> None:
        import ctypes

        self.ctypes = ctypes
        self.library = ctypes.CDLL(LIBRARY)
        self.library.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises `NvmlError` with NVML's message, or `AttributeError` if there is no such function."""
        status = getattr(self.library, name)(*arguments)
        if status:
            message = self.library.nvmlErrorString(status) or b"error %d" % status
            raise NvmlError(message.decode("utf-8", "replace"))

    def read_string(self, name: str, *arguments: Any) -> str:
        """Return the text that a function writes into a buffer."""
        buffer = self.ctypes.create_string_buffer(128)
        self.call(name, *arguments, buffer, self.ctypes.c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace")


def collect_gpus_by_nvml() -> dict[str, Any]:
    """Return "driver" and "devices" as facts, "devices" in the form of `nvidia_text.parse_gpus`; {} without NVML."""
    try:
        nvml = Nvml()
    except Exception:  # ctypes or the library is missing, or the file is not a library
        return {}
    try:
        nvml.call("nvmlInit_v2")
    except (NvmlError, AttributeError) as error:
        reason = "NVML: " + describe_error(error).partition(": ")[2]
        return {"driver": unreadable(reason), "devices": unreadable(reason)}
    try:
        return {"driver": _driver_fact(nvml), "devices": _devices_fact(nvml)}
    finally:
        nvml.library.nvmlShutdown()


def _driver_fact(nvml: Nvml) -> dict[str, object]:
    try:
        version = nvml.read_string("nvmlSystemGetDriverVersion")
    except (NvmlError, AttributeError) as error:
        return unreadable("NVML: " + describe_error(error))
    return known({"version": version, "cuda": _cuda_version_fact(nvml), "fabric": absent("not asked of NVML")})


def _cuda_version_fact(nvml: Nvml) -> dict[str, object]:
    number = nvml.ctypes.c_int()
    try:
        nvml.call("nvmlSystemGetCudaDriverVersion_v2", nvml.ctypes.byref(number))
    except (NvmlError, AttributeError) as error:
        return unreadable("NVML: " + describe_error(error))
    return known("%d.%d" % (number.value // 1000, number.value % 1000 // 10))


def _devices_fact(nvml: Nvml) -> dict[str, object]:
    count = nvml.ctypes.c_uint()
    try:
        nvml.call("nvmlDeviceGetCount_v2", nvml.ctypes.byref(count))
        devices: list[dict[str, Any]] = [_device_record(nvml, index) for index in range(min(count.value, 256))]
    except (NvmlError, AttributeError) as error:
        return unreadable("NVML: " + describe_error(error))
    return known(devices) if devices else absent("NVML finds no GPU")


def _device_record(nvml: Nvml, index: int) -> dict[str, Any]:
    handle = nvml.ctypes.c_void_p()
    nvml.call("nvmlDeviceGetHandleByIndex_v2", nvml.ctypes.c_uint(index), nvml.ctypes.byref(handle))
    total, free = _memory_facts(nvml, handle)
    return {
        "index": index,
        "name": nvml.read_string("nvmlDeviceGetName", handle),
        "compute_capability": _capability_fact(nvml, handle),
        "memory_total_bytes": total,
        "memory_free_bytes": free,
        "mig": unreadable("not asked of NVML"),
        "ecc": unreadable("not asked of NVML"),
        "visible": True,
        "kernel": unreadable("no kernel was run"),
        "driver": "",
        "uuid": nvml.read_string("nvmlDeviceGetUUID", handle),
    }


def _capability_fact(nvml: Nvml, handle: Any) -> dict[str, object]:
    major, minor = nvml.ctypes.c_int(), nvml.ctypes.c_int()
    try:
        byref = nvml.ctypes.byref
        nvml.call("nvmlDeviceGetCudaComputeCapability", handle, byref(major), byref(minor))
    except (NvmlError, AttributeError) as error:
        return unreadable("NVML: " + describe_error(error))
    return known([major.value, minor.value])


def _memory_facts(nvml: Nvml, handle: Any) -> list[dict[str, object]]:
    memory = (nvml.ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    try:
        nvml.call("nvmlDeviceGetMemoryInfo", handle, memory)
    except (NvmlError, AttributeError) as error:
        return [unreadable("NVML: " + describe_error(error))] * 2
    return [known(int(memory[0])), known(int(memory[1]))]

"""NVML through ctypes. The library is a stand-in compiled here from NVML's own signatures: CI has no driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.gpus import nvml
from tests.nvml_stand_in import build_library

SOURCE = """
#include <stdio.h>
#include <string.h>
#ifndef START
#define START 0
#endif
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
int nvmlInit_v2(void) { return START; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { return !snprintf(text, length, "580.159.04"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(0x7f0000000000UL + index);
  return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned length) { return !snprintf(text, length, "NVIDIA H200"); }
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  return !snprintf(text, length, "GPU-%lu", (unsigned long)device - 0x7f0000000000UL);
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
  if (device != (void *)0x7f0000000000UL) return 3;
  memory->total = 150754820096ULL; memory->free = 150109945856ULL; memory->used = 1;
  return 0;
}
"""


def test_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_library(SOURCE, tmp_path, monkeypatch)
    answer = nvml.collect_gpus_by_nvml()
    assert answer["driver"]["known"]["version"] == "580.159.04"
    assert answer["driver"]["known"]["cuda"] == {"known": "13.0"}
    first, second = answer["devices"]["known"]
    assert (first["name"], first["uuid"], second["uuid"]) == ("NVIDIA H200", "GPU-0", "GPU-1")
    assert first["compute_capability"] == {"known": [9, 0]}
    assert first["memory_total_bytes"] == {"known": 150754820096}
    assert first["memory_free_bytes"] == {"known": 150109945856}
    assert second["memory_free_bytes"] == {"unreadable": "NVML: NvmlError: Not Supported"}


def test_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_library(SOURCE, tmp_path, monkeypatch, "-DSTART=18")
    answer = nvml.collect_gpus_by_nvml()
    assert answer["driver"] == answer["devices"] == {"unreadable": "NVML: Driver/library version mismatch"}


def test_not_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"\x7fELF damaged")
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "libnvidia-ml.so.1"))
    assert nvml.collect_gpus_by_nvml() == {}

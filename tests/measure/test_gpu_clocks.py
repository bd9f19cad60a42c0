"""The sensors of a GPU through NVML. The library is a stand-in compiled here from NVML's own signatures."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.gpus import nvml
from tests.nvml_stand_in import build_library

pytest.importorskip("torch")

SOURCE = """
#include <string.h>
static int reads = 0;
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 2 ? "Invalid Argument" : "Unknown Error"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  if (strcmp(uuid, "GPU-7")) return 2;
  *device = (void *)0x7f0000000007UL;
  return 0;
}
int check(void *device) { return device == (void *)0x7f0000000007UL ? 0 : 3; }
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) {
  *mhz = type == 1 ? 1980 - 480 * reads++ : 1;
  return check(device);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 699400; return check(device); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  *celsius = sensor ? 1 : 61;
  return check(device);
}
int REASONS(void *device, unsigned long long *reasons) { *reasons = 0x100000004UL; return check(device); }
"""


@pytest.mark.parametrize("word", ["Event", "Throttle"])
def test_a_gpu_tells_its_clock_power_and_temperature(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attncheck.measure.worker.gpu_clocks import GpuSensors, summarize_clocks

    build_library(SOURCE, tmp_path, monkeypatch, f"-DREASONS=nvmlDeviceGetCurrentClocks{word}Reasons")
    sensors = GpuSensors("GPU-7")
    clocks = summarize_clocks([sensors.read(), sensors.read()])
    assert (clocks.sm_mhz_low, clocks.sm_mhz_high, clocks.power_w, clocks.temperature_c) == (1500, 1980, 699, 61)
    assert clocks.throttled == ("power cap",), "what the other bits mean is not known"


def test_what_nvml_does_not_know_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attncheck.measure.worker import gpu_clocks

    build_library(SOURCE, tmp_path, monkeypatch, "-DREASONS=other")
    assert gpu_clocks.GpuSensors("GPU-7").read()[3] == 0
    with pytest.raises(nvml.NvmlError, match=r"^Invalid Argument$"):
        gpu_clocks.GpuSensors("GPU-8")
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "none"))
    with pytest.raises(OSError, match="none"):
        gpu_clocks.GpuSensors("GPU-7")

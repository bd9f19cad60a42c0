"""A GPU's state while it is timed: clock, power, temperature and throttle reasons, as the driver's NVML reports them.

NVML answers in about a millisecond. `nvidia-smi`, which queries NVML, would have to be started for every reading, and
the timed call would wait for it. Functions as in NVIDIA's nvml.h.
"""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator

import torch

from attncheck.core.results.ring_timings import Clocks
from attncheck.doctor.probes.payload.gpus.nvml import Nvml, NvmlError

POLL_SECONDS = 0.1
SM_CLOCK = 1  # NVML_CLOCK_SM
GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
# The second name is for drivers before 535.
REASONS_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
# nvml.h, nvmlClocksEventReason*: what throttles a busy GPU; idle, application clocks and sync boost are not counted.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "hardware heat",
    0x80: "power brake",
}


class GpuSensors:
    """One GPU's sensors.

    Raises `OSError` without NVML, `AttributeError` if it lacks a function, `NvmlError` for a GPU it does not know.
    """

    def __init__(self, uuid: str) -> None:
        """`uuid` is NVML's, "GPU-…"."""
        self._nvml = Nvml()
        self._device = ctypes.c_void_p()
        self._nvml.call("nvmlInit_v2")
        self._nvml.call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(self._device))

    def read(self) -> tuple[float, ...]:
        """Return the SM clock in MHz, the power in W, the temperature in °C, and the throttle reasons as bits."""
        call = self._nvml.call
        mhz, milliwatts, celsius = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        reasons = ctypes.c_ulonglong()
        call("nvmlDeviceGetClockInfo", self._device, ctypes.c_int(SM_CLOCK), ctypes.byref(mhz))
        call("nvmlDeviceGetPowerUsage", self._device, ctypes.byref(milliwatts))
        call("nvmlDeviceGetTemperature", self._device, ctypes.c_int(GPU_SENSOR), ctypes.byref(celsius))
        name = next((name for name in REASONS_FUNCTIONS if hasattr(self._nvml.library, name)), "")
        if name:
            call(name, self._device, ctypes.byref(reasons))
        return float(mhz.value), milliwatts.value / 1e3, float(celsius.value), float(reasons.value)


@contextlib.contextmanager
def observe_clocks(kind: str) -> Iterator[Callable[[], Clocks]]:
    """Watch the GPU for a block; yield a function that returns the observed clocks, to be called after the block."""
    rows: list[tuple[float, ...]] = []
    stop = threading.Event()
    poller = threading.Thread(target=_poll_clocks, args=(rows, stop), daemon=True)
    if kind == "cuda":
        poller.start()
    try:
        yield lambda: summarize_clocks(rows)
    finally:
        stop.set()
        if kind == "cuda":
            poller.join(3.0)


def _poll_clocks(rows: list[tuple[float, ...]], stop: threading.Event) -> None:
    """Read the current device's sensors until `stop`; none if NVML is unavailable."""
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    with contextlib.suppress(OSError, AttributeError, NvmlError):
        sensors = GpuSensors(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        while True:
            rows.append(sensors.read())
            if stop.wait(POLL_SECONDS):
                return


def summarize_clocks(rows: list[tuple[float, ...]]) -> Clocks:
    """Return the extremes of the polled rows (MHz, W, °C, reasons as bits)."""
    if not rows:
        return Clocks()
    mhz, watts, celsius, bits = zip(*rows)
    throttled = tuple(name for bit, name in THROTTLE_REASONS.items() if any(int(mask) & bit for mask in bits))
    return Clocks(int(min(mhz)), int(max(mhz)), int(max(watts)), int(max(celsius)), throttled)

"""What a GPU does while it is timed: clock, power, temperature and why it is throttled, as nvidia-smi reports."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator

import torch

from attncheck.core.results.ring_timings import Clocks

POLL_SECONDS = 0.2
QUERY = "clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
# nvml.h, nvmlClocksEventReason*: what throttles a busy GPU; idle, application clocks and sync boost are not counted.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "hardware heat",
    0x80: "power brake",
}


@contextlib.contextmanager
def observe_clocks(kind: str) -> Iterator[Callable[[], Clocks]]:
    """Yield a function that returns the clocks seen during the block, to be called once it is over."""
    rows: list[tuple[float, ...]] = []
    stop = threading.Event()
    program = shutil.which("nvidia-smi") if kind == "cuda" else None
    poller = threading.Thread(target=_poll_clocks, args=(program, rows, stop), daemon=True)
    if program:
        poller.start()
    try:
        yield lambda: summarize_clocks(rows)
    finally:
        stop.set()
        if program:
            poller.join(3.0)


def _poll_clocks(program: str, rows: list[tuple[float, ...]], stop: threading.Event) -> None:
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", uuid]
    while not stop.is_set():
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            values = subprocess.run(command, capture_output=True, text=True, timeout=3).stdout.split(",")
            rows.append((*(float(value) for value in values[:3]), float(int(values[3], 16))))
        stop.wait(POLL_SECONDS)


def summarize_clocks(rows: list[tuple[float, ...]]) -> Clocks:
    """Return the extremes of the polled rows (MHz, W, °C, reasons as bits)."""
    if not rows:
        return Clocks()
    mhz, watts, celsius, bits = zip(*rows)
    throttled = tuple(name for bit, name in THROTTLE_REASONS.items() if any(int(mask) & bit for mask in bits))
    return Clocks(int(min(mhz)), int(max(mhz)), int(max(watts)), int(max(celsius)), throttled)

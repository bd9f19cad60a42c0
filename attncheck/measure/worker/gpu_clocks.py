"""What a GPU does while it is timed: clock, power, temperature and why it is held back, as nvidia-smi tells."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator

import torch

from attncheck.core.results.ring_timings import Clocks

TICK = 0.2  # seconds between looks
QUERY = "clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
# nvml.h, nvmlClocksEventReason*: what holds a busy GPU back; idle, application clocks and sync boost are no complaint.
REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "hardware heat", 0x80: "power brake"}


@contextlib.contextmanager
def observed(kind: str) -> Iterator[Callable[[], Clocks]]:
    """Yield what returns the clocks seen in the block, once it is over; nothing is changed."""
    rows: list[tuple[float, ...]] = []
    over = threading.Event()
    program = shutil.which("nvidia-smi") if kind == "cuda" else None
    watcher = threading.Thread(target=_watch, args=(program, rows, over), daemon=True)
    if program:
        watcher.start()
    try:
        yield lambda: clocks(rows)
    finally:
        over.set()
        if program:
            watcher.join(3.0)


def _watch(program: str, rows: list[tuple[float, ...]], over: threading.Event) -> None:
    device = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    name = device if device.startswith("GPU-") else f"GPU-{device}"
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", name]
    while not over.is_set():
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            told = subprocess.run(command, capture_output=True, text=True, timeout=3).stdout.split(",")
            rows.append((*(float(value) for value in told[:3]), float(int(told[3], 16))))
        over.wait(TICK)


def clocks(rows: list[tuple[float, ...]]) -> Clocks:
    """Return the extremes of what was seen: rows of (MHz, W, °C, reasons as bits)."""
    if not rows:
        return Clocks()
    mhz, watts, celsius, bits = zip(*rows)
    held = tuple(name for bit, name in REASONS.items() if any(int(each) & bit for each in bits))
    return Clocks(int(min(mhz)), int(max(mhz)), int(max(watts)), int(max(celsius)), held)

"""Opens the device of the cases in a worker or a rank, and interprets its exceptions."""

import os
import re
from collections.abc import Callable
from typing import Any

import torch

from attncheck.attention.backend import Device


def prepare_device(kind: str) -> Device:
    """Return the device of the cases, with TF32 and 16-bit sums off, which would make the reference inexact."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if hasattr(torch.backends.cuda, "allow_fp16_bf16_reduction_math_sdp"):
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    release = (int(version[1]), int(version[2])) if version else (0, 0)
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(0)
        return Device("cuda", properties.name, (properties.major, properties.minor), release)
    return Device("cpu", torch=release)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on the device or the host: the machine's limit, not the backend's."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)[:1000]


def describe_exception(error: BaseException) -> str:
    """Return an exception's name and the first line of its message, safe to print."""
    try:
        first_line = (str(error).strip().splitlines() or ["no message"])[0][:300]
    except Exception:  # an exception whose own text raises
        first_line = "no message"
    return f"{type(error).__name__}: " + "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in first_line
    )


def open_device(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> Device:
    """Open the device that `message` names ("auto", "cpu", "cuda") and send its description.

    Ends the process, after sending the reason, if there is no such device.
    """
    torch.set_num_threads(message["threads"])
    kind = message["device"]
    if kind == "cuda" and not torch.cuda.is_available():
        reason = f"torch {torch.__version__} is built without CUDA" if torch.version.cuda is None else "none is visible"
        send({"unanswered": f"there is no CUDA device to measure on: {reason}; `attncheck doctor` gives details"})
        os._exit(0)
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = prepare_device(kind)
    capability = list(device.compute_capability)
    send({"device": {"kind": kind, "name": device.name, "compute_capability": capability, "torch": torch.__version__}})
    return device

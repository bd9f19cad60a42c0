"""What the flash-attn family shares: finding the installed package, and the arguments of a case."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from attncheck.backends import Device, Found
from attncheck.cases import ANY, Case


def find(module: str, distribution: str) -> Found:
    """Return the version of an installed package without importing it, or why there is none."""
    top = module.partition(".")[0]
    try:
        if importlib.util.find_spec(top) is None:
            return Found(missing=f"{distribution} is not installed")
        if "." in module and importlib.util.find_spec(module) is None:
            return Found(missing=f"the installed {top} has no {module}")
    except (ImportError, ValueError, AttributeError) as error:
        return Found(missing=f"{module} cannot be looked up: {error}")
    try:
        return Found(version=importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Found(version="unknown")


def refuse(case: Case, device: Device, lowest: tuple[int, int] = (8, 0)) -> str:
    """Return why no flash-attn kernel can run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "flash-attn runs on CUDA only"
    if device.compute_capability < lowest:
        return "needs sm_{}{} or newer".format(*lowest)
    if case.dtype == "float32":
        return "takes 16-bit dtypes only"
    if case.alignment == "top_left" and case.seqlens_q != case.seqlens_k and (case.causal or case.windowed):
        return "aligns the causal mask bottom right since flash-attn 2.1"
    return ""


def window(case: Case) -> tuple[int, int]:
    """Return the window_size argument."""
    return case.window_size


def open_window(case: Case) -> tuple[int | None, int | None]:
    """Return the window_size argument of flash-attn 4, None for an open side."""
    left, right = (None if side == ANY else side for side in case.window_size)
    return left, right

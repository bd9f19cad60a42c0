"""Functions for all flash-attn packages: finding them, and the cases that no version of them runs."""

import importlib.metadata
import importlib.util

from attncheck.attention.backend import Device, Installed
from attncheck.core.cases import Case


def find_distribution(module: str, distribution: str) -> Installed:
    """Return the version of the distribution of the top-level `module` without importing it, or why it is missing."""
    try:
        if importlib.util.find_spec(module) is None:
            return Installed(missing=f"{distribution} is not installed")
    except (ImportError, ValueError, AttributeError) as error:
        return Installed(missing=f"{module} cannot be looked up: {error}")
    try:
        return Installed(version=importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Installed(version="unknown")


def refuse(case: Case, device: Device) -> str:
    """Return why no flash-attn kernel can run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "flash-attn runs on CUDA only"
    if device.compute_capability < (8, 0):
        return "needs sm_80 or newer"
    if case.dtype == "float32":
        return "takes 16-bit dtypes only"
    is_aligned = case.causal or case.windowed or case.alibi
    if case.alignment == "top_left" and case.seqlens_q != case.seqlens_k and is_aligned:
        return "aligns the causal mask and ALiBi to the bottom right since flash-attn 2.1"
    return ""

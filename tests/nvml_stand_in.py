"""Replaces the driver's NVML: a library compiled here from NVML's own signatures, as CI has no driver."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.gpus import nvml


def build_library(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Compile `source`, C, and use it as the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in with")
    (folder / "nvml.c").write_text(source)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", *options, "-o", library, folder / "nvml.c"], check=True)
    monkeypatch.setattr(nvml, "LIBRARY", str(library))

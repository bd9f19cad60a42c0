"""Faults of communication injected into torch.distributed itself: a folder for the PYTHONPATH of every rank."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

HEAD = """
import os, signal, time

if "RANK" in os.environ:
    import torch
    import torch.distributed as dist

    RANK = int(os.environ["RANK"])
"""


def write_fault(folder: Path, source: str) -> str:
    """Write `source`, which may replace functions of `dist` and knows its RANK; return the PYTHONPATH to set."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HEAD + textwrap.indent(textwrap.dedent(source), "    "))
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))

"""Faults of communication, planted in torch.distributed itself: a folder for PYTHONPATH that each rank starts with."""

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


def plant(folder: Path, source: str) -> str:
    """Write `source`, which may replace functions of `dist` and knows its RANK; return what PYTHONPATH must be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HEAD + textwrap.indent(textwrap.dedent(source), "    "))
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))

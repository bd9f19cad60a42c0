"""Installs a stub nvidia-smi: a program that prints what the real one prints on a machine of our choice.

Field names and layouts as attncheck queries them (`nvidia-smi --query-gpu=… --format=csv,noheader,nounits`, `-q -i 0`,
`topo -m`), recorded on H200 machines with driver 580.159.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Card:
    """One GPU as nvidia-smi lists it; sizes in MiB."""

    name: str = "NVIDIA H200"
    capability: str = "9.0"
    total: int = 143771
    free: int = 143167
    mig: str = "Disabled"


H200 = Card()
V100 = Card("Tesla V100-SXM2-16GB", "7.0", 16384, 16100, "N/A")


def install_nvidia_smi(
    folder: Path,
    cards: Sequence[Card] = (H200, H200),
    link: str = "NV18",
    driver: str = "580.159.04",
    cuda: str = "13.0",
    fabric: str = "Completed",
) -> None:
    """Install the nvidia-smi of a machine with these GPUs, all joined by `link`."""
    gpus = "".join(
        f"{index}, {card.name}, {card.capability}, {card.total}, {card.free}, {card.mig}, Enabled, {driver}, "
        f"GPU-{index}0000000-0000\n"
        for index, card in enumerate(cards)
    )
    header = (
        f"==============NVSMI LOG==============\n\nDriver Version                      : {driver}\n"
        f"CUDA Version                        : {cuda}\n\nAttached GPUs : {len(cards)}\nGPU 00000000:00:04.0\n"
        f"    MIG Mode\n        Current                 : Disabled\n"
        f"    Fabric\n        State                   : {fabric}\n        Status                  : Success\n"
    )
    names = [f"GPU{index}" for index in range(len(cards))]
    rows = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for name in names:
        cells = [" X " if other == name else link for other in names]
        rows.append("\t".join([name, *cells, "0-15", "0", "", "N/A"]))
    outputs = {"gpus": gpus, "-q": header, "topo": "\n".join(rows) + "\n", "-L": ""}
    body = "query = next((word for word in ('topo', '-q', '-L') if word in sys.argv), 'gpus')\n"
    write_nvidia_smi(folder, body + f"sys.stdout.write({outputs!r}[query])\n")


def install_failing_nvidia_smi(folder: Path, output: str, status: int) -> None:
    """Install an nvidia-smi that prints `output` for any query, and exits with `status`."""
    write_nvidia_smi(folder, f"sys.stdout.write({output!r})\nsys.exit({status})\n")


def write_nvidia_smi(folder: Path, body: str) -> None:
    """Install an nvidia-smi that runs the Python `body`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable} -IS\nimport sys\n{body}", encoding="utf-8")
    path.chmod(0o755)

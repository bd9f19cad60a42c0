"""Fake nvidia-smi programs: executables that print what the real one prints on machines that the tests do not have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

H200_CSV = (
    "0, NVIDIA H200, 9.0, 143771, 143167, Disabled, Enabled, 580.159.04, GPU-6d3a2c1e-58b1-7f0a-9c65-0b8f6f0e4a11\n"
)
HEADER = """
==============NVSMI LOG==============

Timestamp                                              : Sat Nov 21 03:38:32 2026
Driver Version                                         : 580.159.04
CUDA Version                                           : 13.0

Attached GPUs                                          : 1
GPU 00000000:00:04.0
    Product Name                                       : NVIDIA H200
    MIG Mode
        Current                                        : Disabled
        Pending                                        : Disabled
    Fabric
        State                                          : Completed
        Status                                         : Success
        CliqueId                                       : 0
"""
BANNER_610 = (
    "+-----------------------------------------------------------------------------------------+\n"
    "| NVIDIA-SMI 610.57.04              KMD Version: 610.57.04     CUDA UMD Version: 13.3     |\n"
)
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
ONE_GPU_TOPOLOGY = (
    "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-15\t0\t\tN/A\n" + LEGEND
)


def eight_gpus_csv(name: str = "NVIDIA H100 80GB HBM3") -> str:
    """Return the CSV of eight GPUs."""
    return "".join(
        f"{index}, {name}, 9.0, 81559, 81079, Disabled, Enabled, 570.133.20, GPU-{index}0000000-0000\n"
        for index in range(8)
    )


def nvswitch_topology(count: int = 8, nics: int = 10, underlined: bool = True) -> str:
    """Return the matrix of an HGX board: NV18 among all GPUs, network cards next to them, two NUMA nodes."""
    names = [f"GPU{index}" for index in range(count)] + [f"NIC{index}" for index in range(nics)]
    head = "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = ["\t" + (f"\x1b[4m{head}\x1b[0m" if underlined else head)]
    for row in range(count):
        cells = [" X " if row == column else "NV18" for column in range(count)]
        cells += ["PXB" if column == row else "NODE" if column // 5 == row // 4 else "SYS" for column in range(nics)]
        half = row // (count // 2)
        lines.append("\t".join([f"GPU{row}", *cells, ("0-55,112-167", "56-111,168-223")[half], str(half), "", "N/A"]))
    for row in range(nics):
        lines.append("\t".join([f"NIC{row}", *["NODE"] * count, *[" X " if row == c else "NODE" for c in range(nics)]]))
    return "\n".join(lines) + "\n" + LEGEND


def pcie_topology() -> str:
    """Return the matrix of four PCIe cards, two with a bridge between them, two on each socket; no escape codes."""
    return (
        "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV12\tSYS\tSYS\t0-23\t0\t\tN/A\n"
        "GPU1\tNV12\t X \tSYS\tSYS\t24-47\t1\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \tPHB\t48-71\t2\t\tN/A\n"
        "GPU3\tSYS\tSYS\tPHB\t X \t72-95\t3\t\tN/A\n" + LEGEND
    )


def install_program(folder: Path, body: str) -> Path:
    """Write a program nvidia-smi into `folder`; `body` is Python that sees `arguments` and the name `query`."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, subprocess, sys, time\n"
        "arguments = sys.argv[1:]\n"
        "query = next((name for name in ('topo', '-q', '-L') if name in arguments), 'gpus')\n" + body,
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


def install_healthy(
    folder: Path, gpus: str = H200_CSV, header: str = HEADER, topo: str = ONE_GPU_TOPOLOGY, listed: str = ""
) -> Path:
    """Install a healthy nvidia-smi that prints these texts."""
    answers = {"gpus": gpus, "-q": header, "topo": topo, "-L": listed}
    return install_program(folder, f"sys.stdout.write({answers!r}[query])\n")


def install_failing(folder: Path, output: str, status: int) -> Path:
    """Install an nvidia-smi that prints `output` for every query, and exits with `status`."""
    return install_program(folder, f"sys.stdout.write({output!r})\nsys.stdout.flush()\nos._exit({status})\n")


def is_alive(pid: int) -> bool:
    """Return whether the process `pid` still runs (a zombie does not)."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not Path("/proc/self").exists()

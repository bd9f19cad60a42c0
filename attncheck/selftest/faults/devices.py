"""Drivers, GPUs and links that do not carry the job, as nvidia-smi would tell of them."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.selftest.faults import Fault, Ground, Plant, nvidia, stubs
from attncheck.selftest.faults.environment import module
from attncheck.selftest.faults.job import ENVIRONMENT, both, having, source
from attncheck.selftest.faults.nvidia import H200, V100, Card

NO_CUDA = stubs.TORCH.replace("is_available=True,", "is_available=False,")
RTX_4090 = Card("NVIDIA GeForce RTX 4090", "8.9", 24564, 24200, "N/A")


def fault(name: str, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault of the machine."""
    return Fault(name, ENVIRONMENT, (code,), title, imitates, plant, says)


def machine(
    cards: Sequence[Card] = (H200, H200), link: str = "NV18", driver: str = "580.159.04", fabric: str = "Completed"
) -> Plant:
    """Return what puts other GPUs, links or another driver into the machine."""
    return lambda ground: nvidia.machine(ground.folder / "tools", cards, link, driver, "13.0", fabric)


def no_gpu(ground: Ground) -> None:
    """Let nvidia-smi find nothing, and torch no CUDA."""
    nvidia.saying(ground.folder / "tools", "No devices were found\n", 6)
    module(ground, "torch/__init__.py", NO_CUDA)


def without_bfloat16(ground: Ground) -> None:
    """Put V100s into the machine, with nothing else that they lack."""
    machine((V100, V100))(ground)


_CPU = "__version__ = '2.11.0+cpu'\ncuda = None\nhip = None\n"
FAULTS = (
    fault("driver-old", "ATN201", "driver 525.60 under a torch for CUDA 13",
          "a cluster whose driver waits for a window",
          both(machine(driver="525.60.13"), source("torch/__init__.py", NO_CUDA)), "525.60"),
    fault("fabric-down", "ATN204", "an NVSwitch fabric that is still in progress, and no CUDA",
          "the fabric manager is not running", both(machine(fabric="In Progress"), source("torch/__init__.py",
                NO_CUDA)), "In Progress"),
    fault("torch-for-cpu", "ATN205", "a CPU build of torch beside two GPUs", "the wrong index",
          source("torch/version.py", _CPU)),
    fault("v100-with-flash", "ATN206", "two V100s and flash-attn", "flash-attn 2 needs sm_80", machine((V100, V100)),
          "sm_70"),
    fault("v100-bfloat16", "ATN209", "two V100s", "they have no bfloat16 arithmetic", without_bfloat16, "V100"),
    fault("mixed-gpus", "ATN210", "an H200 beside a V100", "a workstation", machine((H200, V100)), "V100"),
    fault("memory-in-use", "ATN211", "a GPU with two thirds of its memory taken", "somebody else's job",
          machine((Card(free=48000), H200)), "H200"),
    fault("mig", "ATN214", "GPUs in MIG mode", "a shared cluster", machine((Card(mig="Enabled"), Card(mig="Enabled"))),
          "MIG"),
    fault("no-nvlink", "ATN216", "two H200s joined over the processor alone", "a node without NVLink",
          machine(link="SYS")),
    fault("flash-attn-4-on-ada", "ATN219", "flash-attn-4 on an RTX 4090", "it has no backward there",
          both(machine((RTX_4090,)), having("flash-attn-4==4.0.0b36")), "4090"),
    fault("rtx-40-peers", "ATN220", "two RTX 4090s under driver 525.60",
          "accelerate refuses peer access there", both(machine((RTX_4090, RTX_4090), "PHB", "525.60.13"),
                having("accelerate==1.10.0")), "4090"),
    fault("cudnn-nan", "ATN221", "sdpa on an H200 without flash-attn",
          "cuDNN's backward can return NaN under a mask", having(without=("flash-attn", "ring-flash-attn")), "cuDNN"),
    fault("no-gpu", "ATN223", "an nvidia-smi that finds no GPU", "a job started on a login node", no_gpu, "No devices"),
)  # fmt: skip

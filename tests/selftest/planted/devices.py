"""Drivers, GPUs and links that do not suit the job, as nvidia-smi would report them."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.selftest.faults import Sandbox, SandboxAction
from tests.selftest.planted import nvidia, stubs
from tests.selftest.planted.environment import write_module
from tests.selftest.planted.job import all_of, make_fault, with_module, with_packages
from tests.selftest.planted.nvidia import H200, V100, Card

NO_CUDA = stubs.TORCH.replace("is_available=True,", "is_available=False,")
RTX_4090 = Card("NVIDIA GeForce RTX 4090", "8.9", 24564, 24200, "N/A")


def with_machine(
    cards: Sequence[Card] = (H200, H200), link: str = "NV18", driver: str = "580.159.04", fabric: str = "Completed"
) -> SandboxAction:
    """Return what installs an nvidia-smi of other GPUs, links or another driver."""
    return lambda sandbox: nvidia.install_nvidia_smi(sandbox.folder / "tools", cards, link, driver, "13.0", fabric)


def hide_gpus(sandbox: Sandbox) -> None:
    """Let nvidia-smi find nothing, and torch no CUDA."""
    nvidia.install_failing_nvidia_smi(sandbox.folder / "tools", "No devices were found\n", 6)
    write_module(sandbox, "torch/__init__.py", NO_CUDA)


_CPU = "__version__ = '2.11.0+cpu'\ncuda = None\nhip = None\n"
FAULTS = (
    make_fault("driver-old", "ATN201", "driver 525.60 under a torch for CUDA 13",
          "a cluster whose driver waits for a window",
          all_of(with_machine(driver="525.60.13"), with_module("torch/__init__.py", NO_CUDA)), "525.60"),
    make_fault("fabric-down", "ATN204", "an NVSwitch fabric that is still in progress, and no CUDA",
          "the fabric manager is not running",
          all_of(with_machine(fabric="In Progress"), with_module("torch/__init__.py", NO_CUDA)), "In Progress"),
    make_fault("torch-for-cpu", "ATN205", "a CPU build of torch alongside two GPUs", "the wrong index",
          with_module("torch/version.py", _CPU),
          relies_on=("tools/nvidia-smi",)),
    make_fault("v100-with-flash", "ATN206", "two V100s and flash-attn", "flash-attn 2 needs sm_80",
          with_machine((V100, V100)), "sm_70"),
    make_fault("v100-bfloat16", "ATN209", "two V100s", "they have no bfloat16 arithmetic",
          with_machine((V100, V100)), "V100"),
    make_fault("mixed-gpus", "ATN210", "an H200 alongside a V100", "a workstation", with_machine((H200, V100)), "V100"),
    make_fault("memory-in-use", "ATN211", "a GPU with two thirds of its memory taken", "somebody else's job",
          with_machine((Card(free=48000), H200)), "H200"),
    make_fault("mig", "ATN214", "GPUs in MIG mode", "a shared cluster",
          with_machine((Card(mig="Enabled"), Card(mig="Enabled"))), "MIG"),
    make_fault("no-nvlink", "ATN216", "two H200s joined over the processor alone", "a node without NVLink",
          with_machine(link="SYS")),
    make_fault("flash-attn-4-on-ada", "ATN219", "flash-attn-4 on an RTX 4090", "it has no backward there",
          all_of(with_machine((RTX_4090,)), with_packages("flash-attn-4==4.0.0b36")), "4090"),
    make_fault("rtx-40-peers", "ATN220", "two RTX 4090s under driver 525.60",
          "accelerate refuses peer access there", all_of(with_machine((RTX_4090, RTX_4090), "PHB", "525.60.13"),
                with_packages("accelerate==1.10.0")), "4090"),
    make_fault("cudnn-nan", "ATN221", "sdpa on an H200 without flash-attn",
          "cuDNN's backward can return NaN under a mask", with_packages(without=("flash-attn", "ring-flash-attn")),
          "cuDNN",
          relies_on=("tools/nvidia-smi", "torch")),
    make_fault("no-gpu", "ATN223", "an nvidia-smi that finds no GPU", "a job started on a login node", hide_gpus,
          "No devices"),
)  # fmt: skip

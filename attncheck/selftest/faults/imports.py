"""Modules that raise, die or hang when they are imported, and what they answer wrongly once they are."""

from __future__ import annotations

from attncheck.selftest.faults import Fault, Ground, Plant, stubs
from attncheck.selftest.faults.job import ENVIRONMENT, both, having, source

DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANGS = "import time\nwhile True:\n    time.sleep(1)\n"
NO_LIBRARY = "raise ImportError('libcudart.so.13: cannot open shared object file: No such file or directory')\n"


def fault(name: str, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault that shows when modules are imported."""
    return Fault(name, ENVIRONMENT, (code,), title, imitates, plant, says)


def torch(old: str, new: str) -> Plant:
    """Return what changes the stub torch by a replacement of text."""
    assert old in stubs.TORCH
    return source("torch/__init__.py", stubs.TORCH.replace(old, new))


def broken_plugin(ground: Ground) -> None:
    """Put a rule of somebody else's on PYTHONPATH, which raises when it is loaded."""
    ground.write("plugins/broken_rule.py", "raise RuntimeError('of another attncheck')\n")
    ground.write("plugins/broken-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    ground.write("plugins/broken-1.0.dist-info/entry_points.txt", "[attncheck.rules]\nbroken = broken_rule\n")
    ground.before_all(ground.folder / "plugins")


FAULTS = (
    fault("plugin-broken", "ATN902", "an extension of attncheck that raises when it is loaded",
          "a plugin for another version", broken_plugin, "broken_rule"),
    fault("torch-raises", "ATN102", "a torch whose import misses libcudart.so.13", "a CUDA package removed",
          source("torch/__init__.py", NO_LIBRARY), "libcudart.so.13"),
    fault("torch-dies", "ATN102", "a torch that crashes when it is imported", "a library of another build first",
          source("torch/__init__.py", DIES), "SIGSEGV"),
    fault("torch-hangs", "ATN102", "a torch whose import never ends", "a network file system that stalls",
          source("torch/__init__.py", HANGS), "had not ended"),
    fault("flash-attn-raises", "ATN108", "a flash_attn that misses a module", "einops was not installed",
          source("flash_attn/__init__.py", "import einops_of_old\n"), "einops_of_old"),
    fault("flash-attn-dies", "ATN108", "a flash_attn that crashes when it is imported", "built for another CPU",
          source("flash_attn/__init__.py", DIES), "SIGSEGV"),
    fault("flash-attn-hangs", "ATN108", "a flash_attn whose import never ends", "a lock that is never released",
          source("flash_attn/__init__.py", HANGS), "had not ended"),
    fault("flash-attn-denied", "ATN120", "a transformers that says there is no flash-attn",
          "huggingface/transformers#41651, #42999: it reads metadata, not the module",
          source("transformers/utils/import_utils.py",
                stubs.IMPORT_UTILS + "def is_flash_attn_2_available():\n    return False\n")),
    fault("flash-attn-3-raises", "ATN126", "a flash-attn-3 that cannot be imported", "built for another torch",
          both(having("flash-attn-3==3.0.0b1"), source("flash_attn_interface.py",
                "raise ImportError('undefined symbol: _ZN3c10')\n"))),
    fault("liger-raises", "ATN153", "a liger_kernel that raises when it is imported", "a name of transformers moved",
          both(having("liger-kernel==0.8.4"), source("liger_kernel/transformers/monkey_patch.py",
                "import nothing_of_the_kind\n")), "nothing_of_the_kind"),
    fault("transformers-raises", "ATN154", "a transformers that raises when it is imported",
          "tokenizers of another release",
          source("transformers/modeling_utils.py", "raise ImportError('tokenizers>=0.22 is required')\n"),
                "tokenizers"),
    fault("cuda-does-not-start", "ATN203", "a torch that cannot start CUDA beside a GPU",
          "a container without /dev/nvidia-uvm",
          torch("is_available=True,", "is_available=False,")),
    fault("kernel-architectures", "ATN208", "a torch compiled for sm_70 alone", "a build for another cluster",
          torch('_cuda_getArchFlags="sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"', '_cuda_getArchFlags="sm_70"'), "sm_70"),
    fault("sdpa-backend-off", "ATN558", "a torch that comes up with its memory-efficient backend off",
          "sitecustomize of an image",
          torch("mem_efficient_sdp_enabled=True", "mem_efficient_sdp_enabled=False"), "EFFICIENT_ATTENTION"),
)  # fmt: skip

"""Modules that raise, die or hang when they are imported, and wrong answers of modules that are imported."""

from __future__ import annotations

from attncheck.selftest.faults import SandboxAction
from tests.selftest.planted import stubs
from tests.selftest.planted.job import all_of, make_fault, with_module, with_packages

DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANGS = "import time\nwhile True:\n    time.sleep(1)\n"
NO_LIBRARY = "raise ImportError('libcudart.so.13: cannot open shared object file: No such file or directory')\n"


def with_edited_torch(old: str, new: str) -> SandboxAction:
    """Return what changes the stub torch by a replacement of text."""
    assert old in stubs.TORCH
    return with_module("torch/__init__.py", stubs.TORCH.replace(old, new))


FAULTS = (
    make_fault("torch-raises", "ATN102", "a torch whose import misses libcudart.so.13", "a CUDA package removed",
          with_module("torch/__init__.py", NO_LIBRARY), "libcudart.so.13"),
    make_fault("torch-dies", "ATN102", "a torch that crashes when it is imported", "another build of a library",
          with_module("torch/__init__.py", DIES), "SIGSEGV"),
    make_fault("torch-hangs", "ATN102", "a torch whose import never ends", "a network file system that stalls",
          with_module("torch/__init__.py", HANGS), "had not ended"),
    make_fault("flash-attn-raises", "ATN108", "a flash_attn that misses a module", "einops was not installed",
          with_module("flash_attn/__init__.py", "import einops_of_old\n"), "einops_of_old"),
    make_fault("flash-attn-dies", "ATN108", "a flash_attn that crashes when it is imported", "built for another CPU",
          with_module("flash_attn/__init__.py", DIES), "SIGSEGV"),
    make_fault("flash-attn-hangs", "ATN108", "a flash_attn whose import never ends", "a lock that is never released",
          with_module("flash_attn/__init__.py", HANGS), "had not ended"),
    make_fault("flash-attn-denied", "ATN120", "a transformers that says there is no flash-attn",
          "huggingface/transformers#41651, #42999: it reads metadata, not the module",
          with_module("transformers/utils/import_utils.py",
                stubs.IMPORT_UTILS + "def is_flash_attn_2_available():\n    return False\n"),
          relies_on=("flash-attn",)),
    make_fault("flash-attn-3-raises", "ATN126", "a flash-attn-3 that cannot be imported", "built for another torch",
          all_of(with_packages("flash-attn-3==3.0.0b1"), with_module("flash_attn_interface.py",
                "raise ImportError('undefined symbol: _ZN3c10')\n"))),
    make_fault("liger-raises", "ATN153", "a liger_kernel that raises when it is imported",
          "a name of transformers moved", all_of(with_packages("liger-kernel==0.8.4"),
                with_module("liger_kernel/transformers/monkey_patch.py", "import nothing_of_the_kind\n")),
          "nothing_of_the_kind"),
    make_fault("transformers-raises", "ATN154", "a transformers that raises when it is imported",
          "tokenizers of another release",
          with_module("transformers/modeling_utils.py", "raise ImportError('tokenizers>=0.22 is required')\n"),
                "tokenizers"),
    make_fault("cuda-does-not-start", "ATN203", "a torch that cannot start CUDA alongside a GPU",
          "a container without /dev/nvidia-uvm",
          with_edited_torch("is_available=True,", "is_available=False,")),
    make_fault("kernel-architectures", "ATN208", "a torch compiled for sm_70 alone", "a build for another cluster",
          with_edited_torch('_cuda_getArchFlags="sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"', '_cuda_getArchFlags="sm_70"'),
          "sm_70",
          relies_on=("tools/nvidia-smi",)),
    make_fault("sdpa-backend-off", "ATN558", "a torch that comes up with its memory-efficient backend off",
          "sitecustomize of an image",
          with_edited_torch("mem_efficient_sdp_enabled=True", "mem_efficient_sdp_enabled=False"),
          "EFFICIENT_ATTENTION"),
)  # fmt: skip

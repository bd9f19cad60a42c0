"""flash-attn must be compiled, but the build tools are missing.

What it checks: if flash-attn is missing or broken and no wheel is published for this torch: an nvcc of torch's CUDA
major version (12.8 or newer for Blackwell) and a C++ compiler. ninja and Python packages are part of the install
command already.

Why it matters: pip fails after minutes with "CUDA_HOME environment variable is not set", "nvcc was not found" or "The
detected CUDA version mismatches". The CUDA packages that torch installs contain no compiler.

What to do: install the CUDA toolkit of that major version (in conda: cuda-nvcc), or avoid the build: use the Hub's
kernel, sdpa, or a torch version with published wheels.

Source: setup.py of flash-attn 2.8.3 and torch/utils/cpp_extension.py of torch 2.13.0 (`_check_cuda_version`);
Dao-AILab/flash-attention#420, #948, #447, #246, #509.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes.flash_attn import (
    describe_wheel_tags,
    missing_build_tools,
    needs_source_build,
    required_wheel_tags,
)
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    missing = missing_build_tools(snapshot)
    if not missing or not needs_source_build(snapshot):
        return
    yield Problem(
        message=f"flash-attn must be compiled here, but these are missing: {'; '.join(missing)}",
        subject="flash-attn",
        evidence=(f"no wheel is published for {describe_wheel_tags(snapshot)}", _describe_toolkit(snapshot)),
        fixes=tuple(_fixes(snapshot)),
    )


def _describe_toolkit(snapshot: Snapshot) -> str:
    home = snapshot.build_tools.cuda_home
    return f"CUDA toolkit: {home.value}" if isinstance(home, Known) else "CUDA toolkit: not found"


def _fixes(snapshot: Snapshot) -> Iterator[Fix]:
    tags = required_wheel_tags(snapshot)
    torch = snapshot.torch.value.cuda if isinstance(snapshot.torch, Known) else None
    cuda = torch.value if isinstance(torch, Known) else ""
    if tags is not None and any("nvcc" in tool for tool in missing_build_tools(snapshot)):
        if snapshot.host.conda:
            yield Fix("install the compiler", "command", f"conda install -c nvidia cuda-nvcc={cuda}", "unsafe")
        else:
            yield Fix("install the CUDA toolkit", "manual", f"CUDA toolkit {cuda}: then export CUDA_HOME")
    if any("g++" in tool for tool in missing_build_tools(snapshot)):
        yield Fix("install a C++ compiler", "manual", "g++ (Debian, Ubuntu: apt install build-essential)")


RULE = Rule("ATN110", "warning", check, needs=frozenset({"flash"}))

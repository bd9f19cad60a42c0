"""Compiled modules that do not fit: truncated, or built for another torch, CUDA, C library, Python or GPU."""

from __future__ import annotations

from functools import partial

from attncheck.selftest.faults import Sandbox, SandboxAction
from tests.selftest.planted import compiled, environment, job, stubs
from tests.selftest.planted.job import with_packages

FLASH_MODULE = "flash_attn_2_cuda"
OLD_ABI_SYMBOL = "_ZN3c105ErrorC2ENS_14SourceLocationESs"  # of a torch with the C++ ABI of before 2.6


# A machine for which such modules can be written.
make_fault = partial(job.make_fault, needs=() if compiled.is_supported() else ("x86_64",))


def with_flash_extension(data: bytes, tag: str = "") -> SandboxAction:
    """Return what replaces the stub's compiled module of flash-attn."""

    def inject(sandbox: Sandbox) -> None:
        (environment.site_packages(sandbox) / f"{FLASH_MODULE}.py").unlink()
        environment.add_extension(sandbox, FLASH_MODULE, "flash-attn", data, tag)

    return inject


def build_extension(**requirements: object) -> bytes:
    """Return a compiled module for this torch that has further requirements."""
    if not compiled.is_supported():
        return b""
    imports = (*stubs.EXTENSION_SYMBOLS[:1], *requirements.pop("imports", ()))  # type: ignore[misc]
    needed = ("libc10.so", *requirements.pop("needed", ()))  # type: ignore[misc]
    return compiled.build_library(imports=imports, needed=needed, **requirements)  # type: ignore[arg-type]


def with_extension(name: str, distribution: str, version: str, data: bytes) -> SandboxAction:
    """Return what installs another distribution with a compiled module."""

    def inject(sandbox: Sandbox) -> None:
        with_packages(f"{distribution}=={version}")(sandbox)
        environment.add_extension(sandbox, name, distribution, data)

    return inject


def break_torch_library(sandbox: Sandbox) -> None:
    """Let torch's library need a library that is found nowhere, and examine files alone."""
    data = compiled.build_library(
        exports=stubs.EXPORTS["libtorch_cuda.so"], needed=("libcusparseLt.so.0",), soname="libtorch_cuda.so"
    )
    environment.write_module(sandbox, "torch/lib/libtorch_cuda.so", data)
    sandbox.arguments += ["--lane", "static"]


FAULTS = (
    make_fault("torch-library-missing", "ATN103", "a library of torch that needs libcusparseLt.so.0, found nowhere",
          "an NVIDIA package removed by another's uninstall", break_torch_library, "libcusparseLt.so.0"),
    make_fault("flash-attn-of-another-torch", "ATN104", "flash-attn's extension requires a symbol that torch lacks",
          "Dao-AILab/flash-attention#723, #931; instructlab/training#494",
          with_flash_extension(build_extension(imports=(OLD_ABI_SYMBOL,))), OLD_ABI_SYMBOL),
    make_fault("flash-attn-of-another-cuda", "ATN105", "flash-attn's extension needs libcudart.so.11.0",
          "a wheel for another CUDA (Dao-AILab/flash-attention#728)",
          with_flash_extension(build_extension(needed=("libcudart.so.11.0",))), "libcudart.so.11"),
    make_fault("flash-attn-of-newer-glibc", "ATN106", "flash-attn's extension needs GLIBC_9.99",
          "Dao-AILab/flash-attention#1708: GLIBC_2.32 not found",
          with_flash_extension(build_extension(version=("libc.so.6", "GLIBC_9.99"))), "9.99"),
    make_fault("flash-attn-of-another-python", "ATN107", "flash-attn's extension is tagged for CPython 3.8",
          "a site-packages copied between Pythons",
          with_flash_extension(build_extension(), ".cpython-38-x86_64-linux-gnu.so"), "cpython-38"),
    make_fault("extension-of-another-torch", "ATN125", "causal-conv1d's extension requires a symbol that torch lacks",
          "torch upgraded next to it", with_extension("causal_conv1d_cuda", "causal-conv1d", "1.5.0",
                build_extension(imports=(OLD_ABI_SYMBOL,))), "causal-conv1d"),
    make_fault("extension-cut", "ATN129", "causal-conv1d's extension cut off after 100 bytes",
          "a full disk during an install",
          with_extension("causal_conv1d_cuda", "causal-conv1d", "1.5.0", build_extension()[:100]), "truncated"),
    make_fault("flash-attn-without-sm-90", "ATN207", "flash-attn's extension holds code for sm_75 alone",
          "FLASH_ATTN_CUDA_ARCHS of another cluster",
          with_flash_extension(build_extension(fat_binary=compiled.build_fat_binary((2, 75)))), "sm_75",
          relies_on=("tools/nvidia-smi",)),
    make_fault("flash-attn-3-without-sm-90", "ATN218", "flash-attn-3's extension holds code for sm_80 alone",
          "built with hopper's kernels disabled", with_extension("flash_attn_3._C", "flash-attn-3", "3.0.0b1",
                build_extension(fat_binary=compiled.build_fat_binary((2, 75)))), "sm_75",
          relies_on=("tools/nvidia-smi",)),
)  # fmt: skip

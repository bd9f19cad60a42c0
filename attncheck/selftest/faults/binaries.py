"""Compiled modules that do not fit: cut, built for another torch, CUDA, C library, Python or GPU."""

from __future__ import annotations

from attncheck.selftest.faults import Fault, Ground, Plant, compiled, environment, stubs
from attncheck.selftest.faults.job import ENVIRONMENT, having

FLASH = "flash_attn_2_cuda"
OLD_SYMBOL = "_ZN3c105ErrorC2ENS_14SourceLocationESs"  # of a torch with the C++ ABI of before 2.6


def fault(name: str, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault of compiled modules; on machines for which none can be written, there is none."""
    return Fault(name, ENVIRONMENT, (code,), title, imitates, plant, says, () if compiled.supported() else ("x86_64",))


def flash(data: bytes, tag: str = "") -> Plant:
    """Return what puts a compiled module into flash-attn, in place of the stub's."""

    def plant(ground: Ground) -> None:
        (ground.site / f"{FLASH}.py").unlink()
        environment.extension(ground, FLASH, "flash-attn", data, tag)

    return plant


def built(**asks: object) -> bytes:
    """Return a module of this torch that asks for something more."""
    if not compiled.supported():
        return b""
    imports = (*stubs.BUILT[:1], *asks.pop("imports", ()))  # type: ignore[misc]
    needed = ("libc10.so", *asks.pop("needed", ()))  # type: ignore[misc]
    return compiled.library(imports=imports, needed=needed, **asks)  # type: ignore[arg-type]


def other(name: str, distribution: str, version: str, data: bytes) -> Plant:
    """Return what installs another distribution with a compiled module."""

    def plant(ground: Ground) -> None:
        having(f"{distribution}=={version}")(ground)
        environment.extension(ground, name, distribution, data)

    return plant


def torch_library(ground: Ground) -> None:
    """Let torch's library ask for a library that is nowhere, and look at files alone."""
    data = compiled.library(
        exports=stubs.EXPORTS["libtorch_cuda.so"], needed=("libcusparseLt.so.0",), soname="libtorch_cuda.so"
    )
    ground.write(f"{ground.site.relative_to(ground.folder)}/torch/lib/libtorch_cuda.so", data)
    ground.words += ["--lane", "static"]


FAULTS = (
    fault("torch-library-missing", "ATN103", "a library of torch that needs libcusparseLt.so.0, found nowhere",
          "an NVIDIA package removed by another's uninstall", torch_library, "libcusparseLt.so.0"),
    fault("flash-attn-of-another-torch", "ATN104", "flash-attn's extension asks for a symbol that torch lacks",
          "Dao-AILab/flash-attention#723, #931; instructlab/training#494", flash(built(imports=(OLD_SYMBOL,))),
                OLD_SYMBOL),
    fault("flash-attn-of-another-cuda", "ATN105", "flash-attn's extension needs libcudart.so.11.0",
          "a wheel for another CUDA (Dao-AILab/flash-attention#728)", flash(built(needed=("libcudart.so.11.0",))),
                "libcudart.so.11"),
    fault("flash-attn-of-newer-glibc", "ATN106", "flash-attn's extension needs GLIBC_9.99",
          "Dao-AILab/flash-attention#1708: GLIBC_2.32 not found", flash(built(version=("libc.so.6", "GLIBC_9.99"))),
                "9.99"),
    fault("flash-attn-of-another-python", "ATN107", "flash-attn's extension is tagged for CPython 3.8",
          "a site-packages copied between Pythons", flash(built(), ".cpython-38-x86_64-linux-gnu.so"), "cpython-38"),
    fault("extension-of-another-torch", "ATN125", "causal-conv1d's extension asks for a symbol that torch lacks",
          "torch upgraded beside it", other("causal_conv1d_cuda", "causal-conv1d", "1.5.0",
                built(imports=(OLD_SYMBOL,))), "causal-conv1d"),
    fault("extension-cut", "ATN129", "causal-conv1d's extension cut off after 100 bytes",
          "a full disk during an install",
          other("causal_conv1d_cuda", "causal-conv1d", "1.5.0", built()[:100]), "truncated"),
    fault("flash-attn-without-sm-90", "ATN207", "flash-attn's extension holds code for sm_75 alone",
          "FLASH_ATTN_CUDA_ARCHS of another cluster", flash(built(fat_binary=compiled.fat_binary((2, 75)))), "sm_75"),
    fault("flash-attn-3-without-sm-90", "ATN218", "flash-attn-3's extension holds code for sm_80 alone",
          "built with hopper's kernels disabled", other("flash_attn_3._C", "flash-attn-3", "3.0.0b1",
                built(fat_binary=compiled.fat_binary((2, 75)))), "sm_75"),
)  # fmt: skip

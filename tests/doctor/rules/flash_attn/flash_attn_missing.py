"""Cases for ATN109."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def without_flash_attention(version: str, cuda: str, **host: object) -> Snapshot:
    """Return the recorded machine with this torch and without any flash attention."""
    base = s.with_torch(s.h200(), version=version, cuda=s.Known(cuda), hip=s.Absent(), cxx11_abi=s.Known(True))
    base = s.without_packages(base, "flash-attn", "ring-flash-attn", "kernels", "openrlhf")
    return (
        s.with_host(replace(base, imports=s.Absent("not requested")), **host)
        if host
        else replace(base, imports=s.Absent("not requested"))
    )


FIRES = {
    "a wheel is published": without_flash_attention("2.8.0+cu128", "12.8"),
    "no wheel for torch 2.11": without_flash_attention("2.11.0+cu130", "13.0"),
    "torch 2.9: Python 3.12 has a wheel": without_flash_attention("2.9.1+cu128", "12.8"),
    "torch 2.9: Python 3.11 has none": without_flash_attention("2.9.1+cu128", "12.8", python_abi="cp311"),
    "torch 2.14: nothing on PyPI compiles": without_flash_attention("2.14.0+cu130", "13.0"),
    "a laptop": s.laptop(),
    "Windows": without_flash_attention("2.8.0+cu128", "12.8", platform="win32"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "flash-attn-3 is there": s.with_package(without_flash_attention("2.8.0+cu128", "12.8"), "flash-attn-3", "3.0.0"),
    "flash-attn-4 is there": s.with_package(without_flash_attention("2.8.0+cu128", "12.8"), "flash-attn-4", "4.0.0b36"),
    "OpenRLHF: ATN146": s.with_package(without_flash_attention("2.8.0+cu128", "12.8"), "openrlhf", "0.11.2"),
    "ring-flash-attn: ATN142": s.with_package(
        without_flash_attention("2.8.0+cu128", "12.8"), "ring-flash-attn", "0.1.8"
    ),
    "imported from elsewhere": s.with_import(
        s.with_import(without_flash_attention("2.8.0+cu128", "12.8"), "torch"), "flash_attn"
    ),
    "no torch: ATN101": replace(without_flash_attention("2.8.0+cu128", "12.8"), torch=s.Absent("no torch")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    if "win32" in finding:
        return "wheels for Linux only, none for Windows" in finding and "sdpa" in finding
    wheel = "a wheel of 2.8.3 is published" in finding and "--no-deps https://github.com/Dao-AILab" in finding
    build = "only a source build" in finding and "MAX_JOBS=16" in finding and "about" in finding
    return wheel or build or ("no GPU" in finding or 'attn_implementation="sdpa"' in finding)

"""Cases for ATN110."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_missing import without_flash_attention

WITHOUT_WHEEL = without_flash_attention("2.11.0+cu130", "13.0")
READY = s.with_build_tools(WITHOUT_WHEEL, nvcc=s.Known("13.0"), gcc=s.Known("13"), ninja=s.Known("1.13"))

FIRES = {
    "no nvcc": s.with_build_tools(READY, nvcc=s.Absent("no CUDA toolkit")),
    "nvcc of another major": s.with_build_tools(READY, nvcc=s.Known("12.8")),
    "no g++": s.with_build_tools(READY, gcc=s.Absent("none on PATH")),
    "nvcc too old for Blackwell": s.with_gpus(
        s.with_build_tools(without_flash_attention("2.11.0+cu126", "12.6"), nvcc=s.Known("12.6"), gcc=s.Known("13")),
        (10, 0),
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "all is there": READY,
    "another minor version of nvcc will do": s.with_build_tools(READY, nvcc=s.Known("13.2")),
    "a wheel is published": s.with_build_tools(without_flash_attention("2.8.0+cu128", "12.8"), nvcc=s.Absent("none")),
    "flash-attn works": s.with_build_tools(s.h200(), nvcc=s.Absent("none"), gcc=s.Absent("none")),
    "could not look": s.with_build_tools(READY, nvcc=s.Unreadable("it hung")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return ("nvcc" in finding or "g++" in finding) and ("CUDA toolkit" in finding or "build-essential" in finding)

"""Cases for ATN173."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_pip(pip: str = "25.3", apart: bool = True, torch: str = "2.8.0+cu128") -> Snapshot:
    """Return the machine without flash-attn, with this pip and its cache on another file system or not."""
    base = s.without_packages(s.h200(), "flash-attn", "ring-flash-attn")
    base = s.with_torch(base, version=torch, cuda=s.Known("12.8"), hip=s.Absent(), cxx11_abi=s.Known(True))
    return s.with_build_tools(base, pip=s.Known(pip), pip_cache_apart=s.Known(apart))


FIRES = {"pip 25.3, two file systems": with_pip(), "pip 26.0": with_pip("26.0")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "an older pip": with_pip("25.2"),
    "one file system": with_pip(apart=False),
    "no wheel fits, so that nothing is renamed": with_pip(torch="2.11.0+cu128"),
    "pip keeps no cache": s.with_build_tools(with_pip(), pip_config={"no-cache-dir": "1"}),
    "flash-attn works": s.with_package(with_pip(), "flash-attn", "2.8.3"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text tells the cause and both ways out."""
    return "different file systems" in finding and "flash_attn-2.8" in finding and "PIP_NO_CACHE_DIR" in finding

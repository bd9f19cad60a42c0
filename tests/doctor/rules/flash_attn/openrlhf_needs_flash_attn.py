"""Cases for ATN146."""

from tests import snapshots as s

LAPTOP = s.with_package(s.laptop(), "openrlhf", "0.11.2", requires=("flash-attn==2.8.3", "torch"))

FIRES = {
    "OpenRLHF without flash-attn": LAPTOP,
    "the import says so": s.with_import(
        LAPTOP, "openrlhf.models", "raised", exception="ModuleNotFoundError", message="No module named 'flash_attn'"
    ),
    "it fails before it comes there": s.with_import(
        LAPTOP, "openrlhf.models", "raised", exception="ImportError", message="No module named 'ray'"
    ),
}
SILENT = {
    "a launch of it, of which ATN452 says so": s.with_job(LAPTOP, imports=("flash_attn",)),
    "a launch of another framework": s.with_job(LAPTOP, framework="trl", trainer="sft"),
    "the recorded machine": s.h200(),
    "no OpenRLHF": s.laptop(),
    "with flash-attn": s.with_package(LAPTOP, "flash-attn", "2.8.3"),
    "a stub of flash_attn is on the path": s.with_import(LAPTOP, "openrlhf.models", "ok"),
    "flash_attn comes from a path, and fails": s.with_import(
        LAPTOP, "openrlhf.models", "died", signal="SIGSEGV", frames=("flash_attn/__init__.py:3 in <module>",)
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the pin, or why no install helps here."""
    return "flash-attn==2.8.3" in finding or "a CUDA build of torch" in finding

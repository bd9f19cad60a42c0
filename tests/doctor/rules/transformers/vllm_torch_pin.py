"""Cases for ATN156."""

from dataclasses import replace

from tests import snapshots as s

NOT_IMPORTED = replace(s.h200(), imports=s.Absent("not requested"))
OTHER_TORCH_PINNED = s.with_package(NOT_IMPORTED, "vllm", "0.29.0", requires=("torch==2.12.0", "numpy"))

FIRES = {
    "vllm for torch 2.12": OTHER_TORCH_PINNED,
    "the import says so": s.with_import(
        OTHER_TORCH_PINNED, "vllm._C", "raised", exception="ImportError", message="undefined symbol: _ZN3c10"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "vllm for this torch, whose local version does not count": s.with_package(
        NOT_IMPORTED, "vllm", "0.24.0", requires=("torch==2.11.0",)
    ),
    "its extension loads anyway": s.with_import(OTHER_TORCH_PINNED, "vllm._C", "ok"),
    "no pin in the metadata": s.with_package(NOT_IMPORTED, "vllm", "0.29.0"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the torch to take and what must follow."""
    return "torch==2.12.0" in finding and "flash-attn" in finding

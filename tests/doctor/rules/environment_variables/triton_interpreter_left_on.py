"""Cases for ATN803."""

from tests import snapshots as s

FIRES = {"left on": s.with_env(s.h200(), TRITON_INTERPRET="1")}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "off": s.with_env(s.h200(), TRITON_INTERPRET="0"),
    "no GPU, if it is the only way to run a kernel": s.with_env(s.laptop(), TRITON_INTERPRET="1"),
    "nothing that uses Triton": s.with_env(
        s.without_packages(s.h200(), "triton", "liger-kernel", "flash-attn"), TRITON_INTERPRET="1"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset TRITON_INTERPRET" in finding

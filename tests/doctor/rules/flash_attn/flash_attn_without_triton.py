"""Cases for ATN121."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def rl_without_triton(framework: str = "openrlhf") -> Snapshot:
    """Return an RL environment without triton and liger-kernel."""
    base = s.without_packages(s.h200(), "triton", "liger-kernel")
    base = s.with_import(base, "triton", "skipped")
    return s.with_package(base, framework, "0.11.2")


FIRES = {
    "no triton": rl_without_triton(),
    "no triton under verl": rl_without_triton("verl"),
}
SILENT = {
    "triton does not import: ATN171": s.with_import(
        s.with_package(rl_without_triton(), "triton", "3.6.0"),
        "triton",
        "raised",
        exception="ImportError",
        message="libtriton.so",
    ),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it is there": s.with_package(rl_without_triton(), "triton", "3.6.0"),
    "no framework that uses it": s.without_packages(rl_without_triton(), "openrlhf"),
    "verl told not to": s.with_env(rl_without_triton("verl"), VERL_DISABLE_FLASH_ATTN_CE="1"),
    "no GPU": s.with_gpus(rl_without_triton()),
    "liger-kernel lacks it too: ATN152": s.with_import(
        s.with_package(rl_without_triton(), "liger-kernel", "0.8.5"),
        "liger_kernel.transformers",
        "raised",
        message="No module named 'triton'",
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "triton" in finding and "install" in finding

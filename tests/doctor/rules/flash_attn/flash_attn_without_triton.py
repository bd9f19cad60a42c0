"""Cases for ATN121."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def rl(framework: str = "openrlhf") -> Snapshot:
    """Return an RL environment without triton and liger-kernel."""
    base = s.without(s.h200(), "triton", "liger-kernel")
    base = s.imported(base, "triton", "skipped")
    return s.package(base, framework, "0.11.2")


FIRES = {
    "no triton": rl(),
    "no triton under verl": rl("verl"),
    "triton does not import": s.imported(
        s.package(rl(), "triton", "3.6.0"), "triton", "raised", exception="ImportError", message="libtriton.so"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it is there": s.package(rl(), "triton", "3.6.0"),
    "no framework that uses it": s.without(rl(), "openrlhf"),
    "verl told not to": s.env(rl("verl"), VERL_DISABLE_FLASH_ATTN_CE="1"),
    "no GPU": s.gpus(rl()),
    "liger-kernel lacks it too: ATN152": s.package(rl(), "liger-kernel", "0.8.5"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "triton" in finding and "install" in finding

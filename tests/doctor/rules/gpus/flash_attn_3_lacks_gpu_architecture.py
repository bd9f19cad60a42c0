"""Cases for ATN218."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_flash_attn_3(*capabilities: tuple[int, int], sass: tuple[str, ...] = ("sm_80", "sm_90a")) -> Snapshot:
    """Install flash-attn-3 on GPUs of these generations."""
    machine = s.with_package(s.with_gpus(s.h200(), *capabilities), "flash-attn-3", "3.0.0")
    return s.with_binary(machine, "flash_attn_3._C", distribution="flash-attn-3", sass=sass)


FIRES = {
    "Blackwell": with_flash_attn_3((10, 0)),
    "RTX 5090": with_flash_attn_3((12, 0)),
    "Hopper's code on an A100": with_flash_attn_3((8, 0), sass=("sm_90a",)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "Hopper": with_flash_attn_3((9, 0)),
    "RTX 4090 runs sm_80 code": with_flash_attn_3((8, 9)),
    "targets not read": with_flash_attn_3((10, 0), sass=()),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what to use instead."""
    return "flash_attention_2" in finding and "sm_90a" in finding

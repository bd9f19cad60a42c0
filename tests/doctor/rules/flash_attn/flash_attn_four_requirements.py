"""Cases for ATN127."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

REQUIRES = ("nvidia-cutlass-dsl>=4.6.2", "apache-tvm-ffi<0.2,>=0.1.11", "quack-kernels>=0.5.3")


def with_flash_attn_4(quack: str, tvm: str = "0.1.11", cutlass: str = "4.6.2") -> Snapshot:
    """Return flash-attn-4 alongside these versions of what it requires ("" for none)."""
    base = s.with_package(s.h200(), "flash-attn-4", "4.0.0b36", requires=REQUIRES)
    for name, version in (("quack-kernels", quack), ("apache-tvm-ffi", tvm), ("nvidia-cutlass-dsl", cutlass)):
        base = s.with_package(base, name, version) if version else base
    return base


FIRES = {
    "a launch of it": s.with_trl_job(with_flash_attn_4(""), "flash_attention_4"),
    "quack-kernels is missing": with_flash_attn_4(""),
    "quack-kernels is too old": with_flash_attn_4("0.5.2"),
    "apache-tvm-ffi is too new": with_flash_attn_4("0.5.3", tvm="0.2.0"),
    "nvidia-cutlass-dsl is missing": with_flash_attn_4("0.5.3", cutlass=""),
    "the import raises": s.with_import(
        with_flash_attn_4("0.5.3"),
        "flash_attn.cute",
        "raised",
        exception="ImportError",
        message="No module named 'cutlass'",
    ),
}
SILENT = {
    "a launch of flash-attn 2": s.with_trl_job(with_flash_attn_4(""), "flash_attention_2"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "all it requires": with_flash_attn_4("0.5.3"),
    "nvidia-cutlass-dsl of another version: ATN147": with_flash_attn_4("0.5.3", cutlass="4.6.1"),
    "it imports anyway": s.with_import(with_flash_attn_4("0.5.2"), "flash_attn.cute"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "flash-attn-4 4.0.0b36 cannot be used" in finding and "flash-attn-4==4.0.0b36" in finding

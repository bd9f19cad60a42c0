"""Cases for ATN140."""

from dataclasses import replace

from attncheck.core.plan import RING_NAMES
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

MESSAGE = "cannot import name 'is_flash_attn_greater_or_equal_2_10' from 'transformers.modeling_flash_attention_utils'"


def with_versions(ring: str, transformers: str) -> Snapshot:
    """Return the recorded machine with these versions, nothing imported."""
    snapshot = s.with_package(s.h200(), "ring-flash-attn", ring)
    snapshot = s.with_package(snapshot, "transformers", transformers)
    return replace(snapshot, imports=s.Absent("not requested"), interfaces=s.Absent("not requested"))


def with_failed_import(snapshot: Snapshot, message: str) -> Snapshot:
    """Return `snapshot` if importing ring_flash_attn raised `message`."""
    return s.with_import(snapshot, "ring_flash_attn", "raised", exception="ImportError", message=message)


FLASH_ATTN_ERROR = "flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs"
FIRES = {
    "flash-attn fails before the name is reached": with_failed_import(s.h200(), FLASH_ATTN_ERROR),
    "torch fails before the name is reached": s.with_import(s.h200(), "ring_flash_attn", "died", signal="SIGSEGV"),
    "the recorded machine: transformers 5.17": s.h200(),
    "5.4.0, the first without the name": with_versions("0.1.8", "5.4.0"),
    "5.18.0, the last if the shim is enough": with_versions("0.1.8", "5.18.0"),
    "4.50.3, the last before it appeared": with_versions("0.1.8", "4.50.3"),
    "0.1.7 under 5.5.0: a newer ring alone does not help": with_versions("0.1.7", "5.5.0"),
    "the import lane knows better than an unknown version": with_failed_import(
        with_versions("0.1.9", "5.17.0"), MESSAGE
    ),
    "a launch whose framework does not": s.with_job(s.h200(), {"ring_size": 2}),
    "a launch whose framework cannot": s.with_job(
        with_versions("0.1.8", "5.4.0"), {"ring_size": 2, "shims": (RING_NAMES,)}
    ),
    "OpenRLHF pins transformers 5.15.0": s.with_package(
        with_versions("0.1.8", "5.15.0"), "openrlhf", "0.11.2", requires=("transformers==5.15.0",)
    ),
}
SILENT = {
    "5.3.0, and flash-attn fails before it": with_failed_import(with_versions("0.1.8", "5.3.0"), FLASH_ATTN_ERROR),
    "the launch's framework puts the name back": s.with_job(s.h200(), {"ring_size": 2, "shims": (RING_NAMES,)}),
    "no ring-flash-attn": s.laptop(),
    "5.3.0, the last with the name": with_versions("0.1.8", "5.3.0"),
    "4.51.0, the first with the name": with_versions("0.1.8", "4.51.0"),
    "the import worked: somebody patched it": s.with_import(s.h200(), "ring_flash_attn", "ok"),
    "5.19.0: the signature does not fit either, ATN141 says both": with_failed_import(
        with_versions("0.1.8", "5.19.0"), MESSAGE
    ),
    "0.1.7 under 5.0.0: ATN143 says to take 0.1.8": with_versions("0.1.7", "5.0.0"),
    "an unknown version that was not imported": with_versions("0.1.9", "5.17.0"),
    "5.4.0 with OpenRLHF: ATN145 says so": s.with_package(with_versions("0.1.8", "5.4.0"), "openrlhf", "0.11.2"),
    "transformers is not installed": s.without_packages(s.h200(), "transformers"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the name and a fix, never an upgrade."""
    ways = ("transformers>=4.51,<5.4", "transformers==", "before `import ring_flash_attn`")
    named = "_2_10" in finding or "_flash_supports_window" in finding
    return named and any(way in finding for way in ways) and " -U" not in finding

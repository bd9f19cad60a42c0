"""Cases for ATN113."""

from dataclasses import replace

from attncheck.core.environment import Clash
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

PATH = "flash_attn/cute/interface.py"


def with_both_versions(two: tuple[str, ...] = (), four: tuple[str, ...] = (), clash: bool = True) -> Snapshot:
    """Return flash-attn and flash-attn-4 side by side, with the files of each that the other overwrote."""
    base = s.with_package(s.h200(), "flash-attn", "2.8.3", files_altered=two)
    base = s.with_package(base, "flash-attn-4", "4.0.0b36", files_altered=four)
    return replace(base, clashes=(Clash(PATH, ("flash-attn", "flash-attn-4")),) if clash else ())


FIRES = {
    "flash-attn-4 came last": with_both_versions(two=(PATH,)),
    "flash-attn came last": with_both_versions(four=(PATH,)),
    "both claim it, nothing is reported of the contents": with_both_versions(),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "in two places": with_both_versions(clash=False),
    "flash-attn-4 alone": s.with_package(s.without_packages(s.h200(), "flash-attn"), "flash-attn-4", "4.0.0b36"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return (
        "share 1 file;" in finding and "uninstall" in finding and "flash-attn-4==4.0.0b36" not in finding.split("'")[0]
    )

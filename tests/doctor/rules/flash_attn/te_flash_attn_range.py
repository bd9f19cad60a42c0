"""Cases for ATN161."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_versions(engine: str, flash: str) -> Snapshot:
    """Return the recorded machine with these versions."""
    return s.with_package(s.with_package(s.h200(), "transformer-engine", engine), "flash-attn", flash)


FIRES = {
    "1.13 with 2.7.0": with_versions("1.13.0", "2.7.0"),
    "2.5 with 2.8.0": with_versions("2.5.0", "2.8.0"),
    "2.6 with 2.8.2": with_versions("2.6.0", "2.8.2"),
    "2.9 with 2.8.3": with_versions("2.9.0", "2.8.3"),
    "2.18 with the post-release": with_versions("2.18.0", "2.8.3.post1"),
    "2.19 with 2.8.4": with_versions("2.19.0", "2.8.4"),
    "too old for any": with_versions("2.20.2", "2.0.9"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "1.13 with 2.6.3": with_versions("1.13.0", "2.6.3"),
    "2.5 with 2.7.4.post1": with_versions("2.5.0", "2.7.4.post1"),
    "2.6 with 2.8.1": with_versions("2.6.0", "2.8.1"),
    "2.10 with 2.8.3": with_versions("2.10.0", "2.8.3"),
    "2.10 with a local build": with_versions("2.10.0", "2.8.3+cu13"),
    "2.19 with the post-release": with_versions("2.19.0", "2.8.3.post1"),
    "a release before the table": with_versions("1.9.0", "2.8.3"),
    "no TransformerEngine": s.with_package(s.h200(), "flash-attn", "2.8.4"),
    "no flash-attn": s.without_packages(with_versions("2.9.0", "2.8.3"), "flash-attn"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the command."""
    return "flash-attn>=2.1.1" in finding and "--no-deps" in finding

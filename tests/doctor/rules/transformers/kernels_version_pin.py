"""Cases for ATN149."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_versions(transformers: str, kernels: str, **fields: tuple[str, ...]) -> Snapshot:
    """Return the recorded machine with these versions."""
    return s.with_package(s.with_package(s.h200(), "transformers", transformers, **fields), "kernels", kernels)


FIRES = {
    "5.3.0 with 0.15": with_versions("5.3.0", "0.15.2"),
    "5.17.0 with 0.17, one too new": with_versions("5.17.0", "0.17.0"),
    "5.18.0 with 0.16, one too old": with_versions("5.18.0", "0.16.0"),
    "5.12.1 with 0.15": with_versions("5.12.1", "0.15.2"),
    "5.12.0 breaks on importing 0.17": replace(with_versions("5.12.0", "0.17.0"), imports=s.Absent("not requested")),
    "5.12.0 broke on importing 0.17": s.with_import(
        with_versions("5.12.0", "0.17.0"),
        "transformers.modeling_utils",
        "raised",
        exception="ValueError",
        message="Either a revision or a version must be specified.",
    ),
    "as the metadata says": with_versions("5.99.0", "0.17.2", requires=('kernels<0.31,>=0.30; extra == "kernels"',)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "4.57.3, which checks no range, with 0.11.3": with_versions("4.57.3", "0.11.3"),
    "5.3.0 with 0.10.2": with_versions("5.3.0", "0.10.2"),
    "5.17.0 with 0.16.9": with_versions("5.17.0", "0.16.9"),
    "5.18.0 with 0.17.0": with_versions("5.18.0", "0.17.0"),
    "5.13.0 with 0.15.2": with_versions("5.13.0", "0.15.2"),
    "5.12.1 with 0.12.3": with_versions("5.12.1", "0.12.3"),
    "a later release without metadata": with_versions("5.99.0", "0.17.2"),
    "as the metadata says": with_versions("5.99.0", "0.30.1", requires=('kernels<0.31,>=0.30; extra == "kernels"',)),
    "before transformers knew kernels": with_versions("4.49.0", "0.17.2"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the command."""
    return "'kernels" in finding and "install" in finding

"""Cases for ATN149."""

from attncheck.snapshot import Snapshot
from tests import snapshots as s


def pair(transformers: str, kernels: str, **fields: tuple[str, ...]) -> Snapshot:
    """Return the machine with this pair."""
    return s.package(s.package(s.h200(), "transformers", transformers, **fields), "kernels", kernels)


FIRES = {
    "5.3.0 with 0.15": pair("5.3.0", "0.15.2"),
    "5.17.0 with 0.17, one too new": pair("5.17.0", "0.17.0"),
    "5.18.0 with 0.16, one too old": pair("5.18.0", "0.16.0"),
    "as the metadata says": pair("5.99.0", "0.17.2", requires=('kernels<0.31,>=0.30; extra == "kernels"',)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "5.3.0 with 0.10.2": pair("5.3.0", "0.10.2"),
    "5.17.0 with 0.16.9": pair("5.17.0", "0.16.9"),
    "5.18.0 with 0.17.0": pair("5.18.0", "0.17.0"),
    "an unread release": pair("5.12.0", "0.15.2"),
    "a later release without metadata": pair("5.99.0", "0.17.2"),
    "as the metadata says": pair("5.99.0", "0.30.1", requires=('kernels<0.31,>=0.30; extra == "kernels"',)),
    "before transformers knew kernels": pair("4.49.0", "0.17.2"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds the command."""
    return "'kernels" in finding and "install" in finding

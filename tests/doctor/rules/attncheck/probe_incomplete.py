"""Cases for ATN903."""

from dataclasses import replace

from tests import snapshots as s

FIRES = {
    "a section failed": replace(s.h200(), problems=("binaries: PermissionError",)),
    "a deadline passed": replace(s.h200(), problems=("inside transformers: it did not answer before its deadline",)),
}
SILENT = {"nothing failed": s.h200()}


def says(findings: str) -> bool:
    return ("--timeout 180" in findings) == ("deadline" in findings)

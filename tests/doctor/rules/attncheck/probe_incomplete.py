"""Cases for ATN903."""

from dataclasses import replace

from tests import snapshots as s

FIRES = {"a section failed": replace(s.h200(), problems=("binaries: PermissionError",))}
SILENT = {"nothing failed": s.h200()}

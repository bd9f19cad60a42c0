"""Cases for ATN107."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import on

FOREIGN = on("2.8.0+cu128", "12.8", problem="built for cpython-311, this is cpython-312")

FIRES = {
    "static: another Python's file": FOREIGN,
    "the import does not see it": s.imported(
        FOREIGN, "flash_attn", "raised", exception="ModuleNotFoundError", message="No module named 'flash_attn_2_cuda'"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "a damaged file is another matter": on("2.8.0+cu128", "12.8", problem="truncated"),
    "it imports": s.imported(FOREIGN, "flash_attn"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "cpython-311" in finding and "cp312-cp312-linux_x86_64.whl" in finding

"""Cases for ATN107."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import with_flash_attn_extension

FOREIGN = with_flash_attn_extension("2.8.0+cu128", "12.8", problem="built for cpython-311, this is cpython-312")

FIRES = {
    "static: another Python's file": FOREIGN,
    "the import does not see it": s.with_import(
        FOREIGN, "flash_attn", "raised", exception="ModuleNotFoundError", message="No module named 'flash_attn_2_cuda'"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "a damaged file is another matter": with_flash_attn_extension("2.8.0+cu128", "12.8", problem="truncated"),
    "it imports": s.with_import(FOREIGN, "flash_attn"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "cpython-311" in finding and "cp312-cp312-linux_x86_64.whl" in finding

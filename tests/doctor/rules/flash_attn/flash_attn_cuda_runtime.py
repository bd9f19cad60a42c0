"""Cases for ATN105."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import with_flash_attn_extension

MESSAGE = "libcudart.so.12: cannot open shared object file: No such file or directory"
NOT_IMPORTED = with_flash_attn_extension(
    "2.11.0+cu130", "13.0", needed=("libcudart.so.12",), unresolved=("libcudart.so.12",)
)

FIRES = {
    "static: a cu12 wheel under CUDA 13": NOT_IMPORTED,
    "the import says so": s.with_import(
        with_flash_attn_extension("2.11.0+cu130", "13.0", unresolved=()),
        "flash_attn",
        "raised",
        exception="ImportError",
        message=MESSAGE,
    ),
    "symbols are missing as well: one finding": with_flash_attn_extension(
        "2.9.0+cu130", "13.0", unresolved=("libcudart.so.12",), missing_symbols=("_ZN3c105ErrorE",)
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "a second runtime is on the machine, and it imports": s.with_import(NOT_IMPORTED, "flash_attn_2_cuda"),
    "found": with_flash_attn_extension("2.8.0+cu128", "12.8", needed=("libcudart.so.12",), unresolved=()),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return (
        "libcudart.so.12" in finding
        and "CUDA 13.0" in finding
        and ("flash-attn==2.8.3" in finding or "cu13" in finding)
    )

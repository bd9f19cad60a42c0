"""Cases for ATN106."""

from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import with_flash_attn_extension

MESSAGE = "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by flash_attn_2_cuda.so)"
TORCH26 = with_flash_attn_extension("2.6.0+cu124", "12.4", glibc_required="2.32")

FIRES = {
    "one minor version short": s.with_host(TORCH26, glibc=s.Known("2.31")),
    "the import says so": s.with_import(
        s.with_host(with_flash_attn_extension("2.6.0+cu124", "12.4"), glibc=s.Known("2.31")),
        "flash_attn_2_cuda",
        "raised",
        exception="ImportError",
        message=MESSAGE,
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "just enough": s.with_host(TORCH26, glibc=s.Known("2.32")),
    "compared as versions, not as text": s.with_host(
        with_flash_attn_extension("2.6.0+cu124", "12.4", glibc_required="2.4"), glibc=s.Known("2.31")
    ),
    "not known": s.with_host(TORCH26, glibc=s.Unreadable("no libc")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "needs glibc 2.32" in finding and "2.31" in finding and "flash_attn-2.7.4.post1+cu12torch2.6" in finding

"""Cases for ATN108."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import SYMBOL, with_flash_attn_extension

BASE = with_flash_attn_extension("2.8.0+cu128", "12.8", missing_symbols=())


def with_failed_import(message: str, base: Snapshot = BASE) -> Snapshot:
    """Return an environment where `import flash_attn` raises with this message."""
    return s.with_import(base, "flash_attn", "raised", exception="ImportError", message=message)


FIRES = {
    "einops is missing": with_failed_import("No module named 'einops'"),
    "it dies": s.with_import(BASE, "flash_attn_2_cuda", "died", signal="SIGSEGV"),
    "its files were overwritten": s.with_package(
        with_failed_import("No module named 'flash_attn.bert_padding' (einops)"),
        "flash-attn",
        "2.8.3",
        files_missing=("flash_attn/bert_padding.py",),
    ),
    "it hangs": s.with_import(BASE, "flash_attn", "hung", seconds=60.0),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "another torch: ATN104": with_failed_import(f"undefined symbol: {SYMBOL}"),
    "another CUDA: ATN105": with_failed_import(
        "libcudart.so.12: cannot open shared object file: No such file or directory"
    ),
    "torch is broken: ATN102": s.with_import(with_failed_import("libcudnn"), "torch", "raised", message="libcudnn"),
    "a folder is in the way: ATN118": replace(with_failed_import("x"), shadows=("flash_attn at ~/clone/flash_attn",)),
    "not tried": BASE,
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    fixed = "install einops" in finding or "torch2.8cxx11abiTRUE" in finding
    return fixed and any(word in finding for word in ("einops", "SIGSEGV", "after 60 s"))

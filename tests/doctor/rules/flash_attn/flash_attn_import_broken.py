"""Cases for ATN108."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s
from tests.doctor.rules.flash_attn.flash_attn_abi import SYMBOL, on

BASE = on("2.8.0+cu128", "12.8", missing_symbols=())


def raising(message: str, base: Snapshot = BASE) -> Snapshot:
    """Return an environment where `import flash_attn` raises with this message."""
    return s.imported(base, "flash_attn", "raised", exception="ImportError", message=message)


FIRES = {
    "einops is missing": raising("No module named 'einops'"),
    "it dies": s.imported(BASE, "flash_attn_2_cuda", "died", signal="SIGSEGV"),
    "its files were overwritten": s.package(
        raising("No module named 'flash_attn.bert_padding' (einops)"),
        "flash-attn",
        "2.8.3",
        files_missing=("flash_attn/bert_padding.py",),
    ),
    "it hangs": s.imported(BASE, "flash_attn", "hung", seconds=60.0),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "another torch: ATN104": raising(f"undefined symbol: {SYMBOL}"),
    "another CUDA: ATN105": raising("libcudart.so.12: cannot open shared object file: No such file or directory"),
    "torch is broken: ATN102": s.imported(raising("libcudnn"), "torch", "raised", message="libcudnn"),
    "a folder stands in the way: ATN118": replace(raising("x"), shadows=("flash_attn at ~/clone/flash_attn",)),
    "not tried": BASE,
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    fixed = "install einops" in finding or "torch2.8cxx11abiTRUE" in finding
    return fixed and any(word in finding for word in ("einops", "SIGSEGV", "after 60 s"))

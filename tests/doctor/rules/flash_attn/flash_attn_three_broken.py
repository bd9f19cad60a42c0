"""Cases for ATN126."""

from tests import snapshots as s

THREE = s.package(s.h200(), "flash-attn-3", "3.0.0")
SYMBOL = "_ZNK3c106SymInt6sym_neERKS0_"
STATIC = s.binary(THREE, "flash_attn_3._C", distribution="flash-attn-3", missing_symbols=(SYMBOL,))

FIRES = {
    "the import raises": s.imported(
        THREE, "flash_attn_interface", "raised", exception="ImportError", message=f"undefined symbol: {SYMBOL}"
    ),
    "static: another torch": STATIC,
    "static: another CUDA": s.binary(
        THREE, "flash_attn_3._C", distribution="flash-attn-3", unresolved=("libcudart.so.12",)
    ),
    "static: another glibc": s.host(
        s.binary(THREE, "flash_attn_3._C", distribution="flash-attn-3", glibc_required="2.34"), glibc=s.Known("2.31")
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "in order": THREE,
    "it was imported": s.imported(STATIC, "flash_attn_interface"),
    "torch is broken": s.imported(STATIC, "torch", "raised", message="x"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "flash-attn-3 3.0.0 cannot be used" in finding and "whl/cu130" in finding

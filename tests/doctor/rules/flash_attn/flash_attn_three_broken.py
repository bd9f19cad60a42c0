"""Cases for ATN126."""

from tests import snapshots as s

WITH_FLASH_ATTN_3 = s.with_package(s.h200(), "flash-attn-3", "3.0.0")
SYMBOL = "_ZNK3c106SymInt6sym_neERKS0_"
MISSING_SYMBOL = s.with_binary(
    WITH_FLASH_ATTN_3, "flash_attn_3._C", distribution="flash-attn-3", missing_symbols=(SYMBOL,)
)

FIRES = {
    "a launch of it": s.with_trl_job(MISSING_SYMBOL, "flash_attention_3"),
    "the import raises": s.with_import(
        WITH_FLASH_ATTN_3,
        "flash_attn_interface",
        "raised",
        exception="ImportError",
        message=f"undefined symbol: {SYMBOL}",
    ),
    "static: another torch": MISSING_SYMBOL,
    "static: another CUDA": s.with_binary(
        WITH_FLASH_ATTN_3, "flash_attn_3._C", distribution="flash-attn-3", unresolved=("libcudart.so.12",)
    ),
    "static: another glibc": s.with_host(
        s.with_binary(WITH_FLASH_ATTN_3, "flash_attn_3._C", distribution="flash-attn-3", glibc_required="2.34"),
        glibc=s.Known("2.31"),
    ),
    "torch is broken, and its files tell": s.with_import(MISSING_SYMBOL, "torch", "raised", message="x"),
}
SILENT = {
    "a launch of flash-attn 2": s.with_trl_job(MISSING_SYMBOL, "flash_attention_2"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "in order": WITH_FLASH_ATTN_3,
    "it was imported": s.with_import(MISSING_SYMBOL, "flash_attn_interface"),
    "torch is broken, and a library of its is not the one installed": s.with_package(
        s.with_import(MISSING_SYMBOL, "torch", "raised", message="x"),
        "torch",
        "2.11.0",
        files_missing=("torch/lib/libc10.so",),
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "flash-attn-3 3.0.0 cannot be used" in finding and "whl/cu130" in finding

"""Cases for ATN115."""

from dataclasses import replace

from tests import snapshots as s

EXTENSION = "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so"

FIRES = {
    "a module of flash-attn no longer exists": s.with_package(
        s.h200(), "flash-attn", "2.8.3", files_missing=("flash_attn/bert_padding.py",)
    ),
    "a module of flash-attn is another version's": s.with_package(
        s.h200(), "flash-attn", "2.8.3", files_altered=("flash_attn/flash_attn_interface.py",)
    ),
    "its extension no longer exists, and nobody imported it": s.with_package(
        s.with_import(s.h200(), "flash_attn_2_cuda", "skipped"), "flash-attn", "2.8.3", files_missing=(EXTENSION,)
    ),
    "half of ring-flash-attn": s.with_package(
        s.h200(), "ring-flash-attn", "0.1.8", files_missing=("ring_flash_attn/utils.py",)
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "an image slimmed of tests, its extension stripped and imported": s.with_package(
        s.with_import(s.h200(), "flash_attn_2_cuda"),
        "flash-attn",
        "2.8.3",
        files_missing=("hopper/test_util.py",),
        files_altered=(EXTENSION,),
    ),
    "the same image, nothing imported": s.with_package(
        replace(s.h200(), imports=s.Absent("not requested")), "flash-attn", "2.8.3", files_altered=(EXTENSION,)
    ),
    "ring-flash-attn patched on purpose": s.with_package(
        s.h200(), "ring-flash-attn", "0.1.8", files_altered=("ring_flash_attn/adapters/hf_adapter.py",)
    ),
    "flash-attn-4 installed over flash-attn: ATN113": s.with_package(
        s.with_package(s.h200(), "flash-attn", "2.8.3", files_altered=("flash_attn/cute/interface.py",)),
        "flash-attn-4",
        "4.0.0b36",
    ),
    "editable": s.with_package(
        s.h200(), "flash-attn", "2.8.3", editable=True, files_missing=("flash_attn/bert_padding.py",)
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "differs from its installed state" in finding and "force-reinstall" in finding

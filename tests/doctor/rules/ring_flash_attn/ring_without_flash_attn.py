"""Cases for ATN142."""

from dataclasses import replace

from tests import snapshots as s

NOT_IMPORTED = replace(s.h200(), imports=s.Absent("not requested"))
WITHOUT_FLASH_ATTN = s.without_packages(NOT_IMPORTED, "flash-attn")
MESSAGE = "No module named 'flash_attn'"

FIRES = {
    "another framework's launch over a ring, alongside OpenRLHF": s.with_job(
        s.with_package(WITHOUT_FLASH_ATTN, "openrlhf", "0.11.2"), {"ring_size": 2}, framework="axolotl"
    ),
    "a launch over a ring": s.with_job(WITHOUT_FLASH_ATTN, {"ring_size": 2, "scheme": "llama3"}),
    "flash-attn is not installed": WITHOUT_FLASH_ATTN,
    "only flash-attn-4": s.with_package(WITHOUT_FLASH_ATTN, "flash-attn-4", "4.0.0b36"),
    "the import says so": s.with_import(
        WITHOUT_FLASH_ATTN, "ring_flash_attn", "raised", exception="ModuleNotFoundError", message=MESSAGE
    ),
    "the import fails before it comes there": s.with_import(
        WITHOUT_FLASH_ATTN, "ring_flash_attn", "raised", exception="RuntimeError", message="x"
    ),
}
SILENT = {
    "a launch that uses no ring": s.with_job(WITHOUT_FLASH_ATTN, {"attn_implementation": "flash_attention_2"}),
    "the recorded machine": s.h200(),
    "no ring-flash-attn": s.laptop(),
    "flash_attn comes from a path, and the import works": s.with_import(WITHOUT_FLASH_ATTN, "ring_flash_attn", "ok"),
    "flash_attn comes from a path, and fails": s.with_import(
        WITHOUT_FLASH_ATTN,
        "ring_flash_attn",
        "raised",
        exception="OSError",
        message="libcudart.so.12: cannot open",
        frames=(
            "ring_flash_attn/ring_flash_attn.py:3 in <module>",
            "flash_attn/interface.py:15 in <module>",
        ),
    ),
    "OpenRLHF needs it too: ATN146 says so": s.with_package(WITHOUT_FLASH_ATTN, "openrlhf", "0.11.2"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the missing package and the command."""
    return "flash-attn is not installed" in finding and "--no-build-isolation" in finding

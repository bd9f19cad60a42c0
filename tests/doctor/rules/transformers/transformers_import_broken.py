"""Cases for ATN154."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

HUB_ERROR = (
    "huggingface-hub>=1.3.0,<2.0 is required for a normal functioning of this module, but found "
    "huggingface-hub==0.36.0."
)


def with_failed_import(module: str, message: str) -> Snapshot:
    """Return the machine where importing `module` raised."""
    return s.with_import(s.h200(), module, "raised", exception="ImportError", message=message)


FIRES = {
    "a companion is too old": with_failed_import("transformers", HUB_ERROR),
    "modeling_utils fails": with_failed_import(
        "transformers.modeling_utils", "cannot import name 'LayerRepository' from 'kernels'"
    ),
    "it dies": s.with_import(s.h200(), "transformers", "died", signal="SIGSEGV"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "torch is broken": s.with_import(
        with_failed_import("transformers", "x"), "torch", "raised", exception="OSError", message="x"
    ),
    "flash_attn is broken": s.with_import(
        with_failed_import("transformers.modeling_flash_attention_utils", "x"), "flash_attn", "died", signal="SIGSEGV"
    ),
    "not installed": s.without_packages(with_failed_import("transformers", HUB_ERROR), "transformers"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names a fix."""
    return "'huggingface-hub>=1.3.0,<2.0'" in finding or "--force-reinstall" in finding

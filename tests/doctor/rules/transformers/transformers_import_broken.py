"""Cases for ATN154."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

HUB = (
    "huggingface-hub>=1.3.0,<2.0 is required for a normal functioning of this module, but found "
    "huggingface-hub==0.36.0."
)


def raised(module: str, message: str) -> Snapshot:
    """Return the machine where importing `module` raised."""
    return s.imported(s.h200(), module, "raised", exception="ImportError", message=message)


FIRES = {
    "a companion is too old": raised("transformers", HUB),
    "modeling_utils fails": raised(
        "transformers.modeling_utils", "cannot import name 'LayerRepository' from 'kernels'"
    ),
    "it dies": s.imported(s.h200(), "transformers", "died", signal="SIGSEGV"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "torch is broken": s.imported(raised("transformers", "x"), "torch", "raised", exception="OSError", message="x"),
    "flash_attn is broken": s.imported(
        raised("transformers.modeling_flash_attention_utils", "x"), "flash_attn", "died", signal="SIGSEGV"
    ),
    "not installed": s.without(raised("transformers", HUB), "transformers"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the way out."""
    return "'huggingface-hub>=1.3.0,<2.0'" in finding or "--force-reinstall" in finding

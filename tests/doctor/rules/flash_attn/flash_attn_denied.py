"""Cases for ATN120."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def answered(available: bool, cuda: bool = True, version: str = "2.8.3") -> Snapshot:
    """Return an environment where flash-attn imports and transformers answers so."""
    base = s.torch(s.h200(), cuda_available=s.Known(cuda))
    for module in ("flash_attn", "flash_attn_2_cuda"):
        base = s.imported(base, module)
    base = s.package(base, "flash-attn", version)
    return s.interfaces(base, availability={"is_flash_attn_2_available": available})


FIRES = {
    "False and it works": answered(False),
    "no metadata under its name": s.package(s.without(answered(False), "flash-attn"), "flash-attn-custom", "2.8.3"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "True": answered(True),
    "torch sees no GPU: False is right": answered(False, cuda=False),
    "too old: ATN119": answered(False, version="2.3.2"),
    "it does not import": s.imported(answered(False), "flash_attn", "raised", message="x"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "calls flash-attn missing" in finding and "flash-attn" in finding

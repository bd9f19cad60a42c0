"""Cases for ATN120."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_availability(available: bool, cuda: bool = True, version: str = "2.8.3") -> Snapshot:
    """Return an environment where flash-attn imports and transformers reports this availability."""
    base = s.with_torch(s.h200(), cuda_available=s.Known(cuda))
    for module in ("flash_attn", "flash_attn_2_cuda"):
        base = s.with_import(base, module)
    base = s.with_package(base, "flash-attn", version)
    return s.with_interfaces(base, availability={"is_flash_attn_2_available": available})


FIRES = {
    "False and it works": with_availability(False),
    "no metadata under its name": s.with_package(
        s.without_packages(with_availability(False), "flash-attn"), "flash-attn-custom", "2.8.3"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "True": with_availability(True),
    "torch sees no GPU: False is right": with_availability(False, cuda=False),
    "too old: ATN119": with_availability(False, version="2.3.2"),
    "it does not import": s.with_import(with_availability(False), "flash_attn", "raised", message="x"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "reports flash-attn as missing" in finding

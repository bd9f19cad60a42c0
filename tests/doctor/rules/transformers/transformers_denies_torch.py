"""Cases for ATN165."""

from dataclasses import replace

from attncheck.core.facts import Absent
from tests import snapshots as s

TRANSFORMERS_4_57 = s.with_package(s.laptop(), "transformers", "4.57.6")
TORCH_DENIED = s.with_interfaces(TRANSFORMERS_4_57, availability={"is_torch_available": False})
FIRES = {
    "the import lane says so": s.with_env(TORCH_DENIED, USE_TORCH="0"),
    "for a reason that is not seen": TORCH_DENIED,
    "USE_TF takes torch's place": s.with_env(
        s.with_interfaces(TRANSFORMERS_4_57, availability={"is_torch_available": False}), USE_TF="1"
    ),
    "the static lane alone": s.with_env(
        replace(TRANSFORMERS_4_57, interfaces=Absent("not asked"), imports=Absent("not asked")), USE_TORCH="no"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "AUTO": s.with_env(TRANSFORMERS_4_57, USE_TORCH="AUTO"),
    "it is available anyway": s.with_env(
        s.with_interfaces(TRANSFORMERS_4_57, availability={"is_torch_available": True}), USE_TORCH="0"
    ),
    "transformers 5 does not read it": s.with_env(s.laptop(), USE_TORCH="0"),
}

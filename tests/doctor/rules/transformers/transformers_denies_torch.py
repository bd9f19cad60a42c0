"""Cases for ATN165."""

from dataclasses import replace

from attncheck.core.facts import Absent
from tests import snapshots as s

OLD = s.package(s.laptop(), "transformers", "4.57.6")
DENIED = s.interfaces(OLD, availability={"is_torch_available": False})
FIRES = {
    "the import lane says so": s.env(DENIED, USE_TORCH="0"),
    "for a reason that is not seen": DENIED,
    "USE_TF takes torch's place": s.env(s.interfaces(OLD, availability={"is_torch_available": False}), USE_TF="1"),
    "the static lane alone": s.env(
        replace(OLD, interfaces=Absent("not asked"), imports=Absent("not asked")), USE_TORCH="no"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "AUTO": s.env(OLD, USE_TORCH="AUTO"),
    "it is available all the same": s.env(s.interfaces(OLD, availability={"is_torch_available": True}), USE_TORCH="0"),
    "transformers 5 does not read it": s.env(s.laptop(), USE_TORCH="0"),
}

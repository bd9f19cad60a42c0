"""Cases for ATN100."""

from dataclasses import replace

from attncheck.core.environment import Selection
from attncheck.doctor.target import apply_target, parse_target
from tests import snapshots as s

EMPTY = replace(s.laptop(), distributions=(), torch=s.Absent("torch is not installed"), imports=s.Absent("not asked"))
TOOL_ENVIRONMENT = replace(
    EMPTY,
    host=replace(EMPTY.host, virtual_environment=True, selection=Selection("own", ("VIRTUAL_ENV names /gone",))),
)
MANAGED = replace(
    EMPTY,
    host=replace(EMPTY.host, executable="/usr/bin/python3", virtual_environment=False, conda=False),
    build_tools=replace(EMPTY.build_tools, externally_managed=True),
)

FIRES = {
    "no torch at all": EMPTY,
    "the operating system's Python": MANAGED,
    "a tool's own environment": TOOL_ENVIRONMENT,
    "transformers alone": s.with_package(EMPTY, "transformers", "5.17.0"),
}
SILENT = {
    "a CPU build is a torch": s.laptop(),
    "torch comes from outside the distributions": s.with_import(EMPTY, "torch"),
    "installed and unreadable is not missing": replace(s.laptop(), torch=s.Unreadable("version.py is damaged")),
    "a target that names no torch": apply_target(EMPTY, parse_target("h100x8")),
    "a target without torch": apply_target(EMPTY, parse_target("cpu,torch=none")),
}


def says(finding: str) -> bool:
    """Return whether the text names what the user must know; pip does not install into a managed interpreter."""
    told = "torch is not installed" in finding and "--python PATH" in finding
    return told and (MANAGED.host.executable not in finding or ".venv/bin/python -m pip install torch" in finding)

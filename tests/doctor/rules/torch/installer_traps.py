"""Cases for ATN128."""

from typing import Any

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def pip(inside: bool = True, managed: bool = False, **config: str) -> Snapshot:
    """Return an environment that pip serves, with these settings."""
    settings: Any = {name.replace("_", "-"): value for name, value in config.items()}
    base = s.host(s.h200(), virtual_environment=inside, conda=False)
    uv = s.Absent("uv is not on PATH")
    return s.tools(base, uv=uv, pip=s.Known("25.3"), pip_config=settings, externally_managed=managed)


FIRES = {
    "user inside a virtual environment": pip(user="true"),
    "a target": pip(target="/somewhere"),
    "no index": pip(no_index="1"),
    "binaries only": pip(only_binary=":all:"),
    "a virtual environment is demanded": pip(inside=False, require_virtualenv="true"),
    "the system's Python": pip(inside=False, managed=True),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "user outside one": pip(inside=False, user="true"),
    "user switched off": pip(user="0"),
    "binaries only of another package": pip(only_binary="numpy"),
    "in a virtual environment, as demanded": pip(require_virtualenv="true"),
    "uv does not read it": s.tools(pip(user="true"), uv=s.Known("/usr/bin/uv"), pip=s.Absent("no pip")),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names what a user must read."""
    return "pip" in finding

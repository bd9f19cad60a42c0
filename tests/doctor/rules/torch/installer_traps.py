"""Cases for ATN128."""

from typing import Any

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_pip_config(inside: bool = True, managed: bool = False, **config: str) -> Snapshot:
    """Return an environment whose installer is pip, with these settings."""
    settings: Any = {name.replace("_", "-"): value for name, value in config.items()}
    base = s.with_host(s.h200(), virtual_environment=inside, conda=False)
    uv = s.Absent("uv is not on PATH")
    return s.with_build_tools(base, uv=uv, pip=s.Known("25.3"), pip_config=settings, externally_managed=managed)


FIRES = {
    "user inside a virtual environment": with_pip_config(user="true"),
    "a target": with_pip_config(target="/somewhere"),
    "no index": with_pip_config(no_index="1"),
    "binaries only": with_pip_config(only_binary=":all:"),
    "a virtual environment is demanded": with_pip_config(inside=False, require_virtualenv="true"),
    "the system's Python": with_pip_config(inside=False, managed=True),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "user outside one": with_pip_config(inside=False, user="true"),
    "user switched off": with_pip_config(user="0"),
    "binaries only of another package": with_pip_config(only_binary="numpy"),
    "in a virtual environment, as demanded": with_pip_config(require_virtualenv="true"),
    "uv does not read it": s.with_build_tools(
        with_pip_config(user="true"), uv=s.Known("/usr/bin/uv"), pip=s.Absent("no pip")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return "pip" in finding

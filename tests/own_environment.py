"""A virtual environment for attncheck alone, as pipx, uv tool or a pre-commit hook make it: nothing of torch in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def make_own_environment(folder: Path) -> Path:
    """Return the `bin` of a new environment that holds attncheck and what it requires, as links to what is here."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / f"python{version}" / "site-packages"
    for name in _required_distributions():
        _link_distribution(metadata.distribution(name), site)
    (site / "attncheck").symlink_to(ROOT / "attncheck")
    information = site / "attncheck-9.9.9.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: attncheck\nVersion: 9.9.9\n", encoding="utf-8")
    program = folder / "bin" / "attncheck"
    program.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -I -m attncheck "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return folder / "bin"


def _required_distributions() -> set[str]:
    """Return the names of what attncheck requires, and what that requires in turn."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = re.findall(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)
    queue = re.findall(r'"([^"]+)"', line)
    found: set[str] = set()
    while queue:
        requirement = Requirement(queue.pop())
        if requirement.name in found or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        queue += metadata.requires(requirement.name) or ()
    return found


def _link_distribution(distribution: metadata.Distribution, site: Path) -> None:
    purelib = Path(sysconfig.get_path("purelib"))
    for file in distribution.files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not os.path.lexists(site / top):
            (site / top).symlink_to(purelib / top)

"""Reads the files that `--target` names, to predict the packages of an environment; nothing in them is run.

Requirements, lock files (pylock.toml, uv.lock) and pyproject.toml all become one `PackageList`. Only a pin counts as a
version; a range does not, and nothing is guessed. A line that attncheck cannot understand becomes a remark. A broken
file gives a one-line error and exit code 2.

Sources: pip's requirements file format (pip.pypa.io, 25.1), PEP 508, PEP 621 and PEP 751 (packaging.python.org);
uv.lock version 1 (docs.astral.sh/uv, 0.9).
"""

import os
import re
from collections.abc import Callable

from attncheck.core.io.errors import BadUsage
from attncheck.doctor.target_files import locks, pyproject, requirements
from attncheck.doctor.target_files.collector import Collector, PackageList

Reader = Callable[[str, Collector], None]
READERS: tuple[tuple[str, Reader], ...] = (
    (r"pylock(\.[^.]+)?\.toml", locks.read_pylock),
    (r"uv\.lock", locks.read_uv_lock),
    (r"pyproject\.toml", pyproject.read_pyproject),
    (r".*\.(txt|in)", requirements.read_requirements),
)
KNOWN_FILES = "requirements.txt, pylock.toml, uv.lock, pyproject.toml"


def find_reader(path: str) -> Reader | None:
    """Return the reader for a file of this name; None if the name is not recognised."""
    name = os.path.basename(path).lower()
    return next((reader for pattern, reader in READERS if re.fullmatch(pattern, name)), None)


def read_package_list(path: str) -> PackageList:
    """Return the packages that a file names. Raises `BadUsage` for a file that is missing, too large or broken."""
    reader = find_reader(path)
    if reader is None:
        raise BadUsage(f"--target {path!r}: not a file that attncheck reads: {KNOWN_FILES}")
    collector = Collector()
    reader(path, collector)
    return collector.package_list()

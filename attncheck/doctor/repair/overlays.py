"""A temporary folder that holds packages and all that they require and the environment lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attncheck.core.io.errors import Unanswered
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.repair.choices import parse_requirement
from attncheck.doctor.repair.unmet_requirements import find_unmet_requirements
from attncheck.workers.overlay import INSTALL_SECONDS, package_overlay

MAX_ROUNDS = 12  # of requirements that bring further ones


@contextlib.contextmanager
def complete_overlay(
    python: str,
    packages: Sequence[str],
    snapshot: Snapshot,
    report_progress: Callable[[str], None],
    options: Sequence[str] = (),
    seconds: float = INSTALL_SECONDS,
) -> Iterator[Path]:
    """Yield a folder with `packages`, what these require and the environment lacks, what that requires, and so on.

    `options` go to the installer: where wheels come from. A requirement of a package that is already in the folder, in
    the release that was named, is left unmet. The folder is always removed. Raises `Unanswered` where something cannot
    be installed, or each round brings further requirements.
    """
    wanted = list(packages)
    for _ in range(MAX_ROUNDS):
        with package_overlay(python, wanted, report_progress, seconds, options) as folder:
            held = {parse_requirement(_name_file(text))[0] for text in wanted}
            unmet = [text for text in find_unmet_requirements(folder, snapshot) if _canonical_name(text) not in held]
            if not unmet:
                yield folder
                return
        wanted += unmet
    raise Unanswered(f"{' '.join(packages)} cannot be tried: what it requires requires more, {MAX_ROUNDS} times over")


def _canonical_name(text: str) -> str:
    return str(canonicalize_name(Requirement(text).name))


def _name_file(text: str) -> str:
    """Return a requirement; of a wheel's path what reads like its address."""
    return f"file://{text}" if text.endswith(".whl") and "://" not in text else text

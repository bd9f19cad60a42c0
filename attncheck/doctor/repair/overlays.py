"""A temporary folder with packages and the requirements that the environment lacks, and the facts seen with it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attncheck.core.io.errors import Unanswered
from attncheck.core.io.outgoing import map_texts
from attncheck.core.snapshot import Distribution, Snapshot
from attncheck.doctor.probes.collect import Lane, collect_snapshot
from attncheck.doctor.probes.payload.privacy import scrub
from attncheck.doctor.repair.choices import parse_requirement
from attncheck.doctor.repair.unmet_requirements import find_unmet_requirements
from attncheck.workers.overlay import INSTALL_SECONDS, package_overlay

T = TypeVar("T")
MAX_ROUNDS = 12  # rounds in which requirements may bring further ones
FOLDER_NAME = "(temporary folder)"
REPORTED_BY_FOLDER = ("ATN116",)  # a trial always has two versions of a package


@contextlib.contextmanager
def complete_overlay(
    python: str,
    packages: Sequence[str],
    snapshot: Snapshot,
    report_progress: Callable[[str], None],
    options: Sequence[str] = (),
    seconds: float = INSTALL_SECONDS,
) -> Iterator[Path]:
    """Yield a folder with `packages` and, recursively, everything they require and the environment lacks.

    `options` go to the installer, such as where wheels come from. A requirement that conflicts with a release already
    in the folder is left unmet. The folder is always removed. Raises `Unanswered` if a package cannot be installed, or
    if requirements do not settle after `MAX_ROUNDS` rounds.
    """
    wanted = list(packages)
    for _ in range(MAX_ROUNDS):
        with package_overlay(python, wanted, report_progress, seconds, options) as folder:
            held = {parse_requirement(_name_file(text))[0] for text in wanted}
            unmet = [
                text
                for text in find_unmet_requirements(folder, snapshot)
                if str(canonicalize_name(Requirement(text).name)) not in held
            ]
            if not unmet:
                yield folder
                return
        wanted += unmet
    raise Unanswered(f"{' '.join(packages)} cannot be tried: its requirements go more than {MAX_ROUNDS} levels deep")


def collect_beside(
    python: str,
    folder: str,
    lanes: tuple[Lane, ...],
    model: str | None,
    before: Snapshot,
    seconds: float,
    report_progress: Callable[[str], None],
    requirements: bool = True,
) -> Snapshot:
    """Return the facts that the lanes collect with the packages of `folder`; the machine and the launch are those of
    `before`.

    With `requirements`, the requirements of every package are read, not only those of the attention stack.
    """
    tried = collect_snapshot(
        python, lanes, model, None, seconds, report_progress, before.host.selection, (folder,), requirements
    )
    first: dict[str, Distribution] = {}
    for distribution in tried.distributions:  # in the order of sys.path: packages of the folder come first
        first.setdefault(distribution.name, distribution)
    return hide_folder(
        replace(
            tried,
            distributions=tuple(first.values()),
            clashes=tuple(clash for clash in before.clashes if set(clash.owners) <= first.keys()),
            driver=before.driver,
            devices=before.devices,
            topology=before.topology,
            model=before.model if model is None else tried.model,
            job=before.job,
        ),
        folder,
    )


def hide_folder(value: T, folder: str) -> T:
    """Return data without the path of a folder that no longer exists when the report is read."""
    names = sorted({folder, str(scrub(folder))}, key=len, reverse=True)

    def hide(text: str) -> str:
        for name in names:
            text = text.replace(name, FOLDER_NAME)
        return text

    hidden: T = map_texts(value, hide)
    return hidden


def _name_file(text: str) -> str:
    """Return a requirement; a wheel's path is shortened to its file name."""
    return f"file://{text}" if text.endswith(".whl") and "://" not in text else text

"""The snapshot of an environment with packages from a temporary folder before its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from attncheck.core.environment import Distribution
from attncheck.core.io.outgoing import map_texts
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.collect import Lane, collect_snapshot
from attncheck.doctor.probes.payload.privacy import scrub

T = TypeVar("T")
FOLDER_NAME = "(temporary folder)"


def collect_beside(
    python: str,
    folder: str,
    lanes: tuple[Lane, ...],
    model: str | None,
    before: Snapshot,
    seconds: float,
    report_progress: Callable[[str], None],
) -> Snapshot:
    """Return what the lanes observe with the packages of `folder`; the machine and the launch are those of `before`."""
    tried = collect_snapshot(
        python, lanes, model, None, seconds, report_progress, before.host.selection, (folder,), requirements=True
    )
    first: dict[str, Distribution] = {}
    for distribution in tried.distributions:  # in the order of sys.path: the folder's come first
        first.setdefault(distribution.name, distribution)
    return hide_folder(
        replace(
            tried,
            distributions=tuple(first.values()),
            clashes=tuple(clash for clash in before.clashes if set(clash.owners) <= first.keys()),
            driver=before.driver,
            devices=before.devices,
            topology=before.topology,
            job=before.job,
        ),
        folder,
    )


def hide_folder(value: T, folder: str) -> T:
    """Return data without the path of a folder that is removed when it is read."""
    names = sorted({folder, str(scrub(folder))}, key=len, reverse=True)

    def hide(text: str) -> str:
        for name in names:
            text = text.replace(name, FOLDER_NAME)
        return text

    hidden: T = map_texts(value, hide)
    return hidden

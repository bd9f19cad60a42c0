"""Judges an upgrade without running it: from tables and metadata, and from the new code where its wheel is at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attncheck.core.environment import Distribution
from attncheck.core.findings import Finding, is_selected
from attncheck.core.io.errors import Unanswered
from attncheck.core.results.upgrade import Basis
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.repair.overlays import collect_beside
from attncheck.stacks.upgrade import not_known
from attncheck.stacks.upgrade.builds import list_outdated_builds
from attncheck.stacks.upgrade.compare import Comparison, Judging, compare_snapshots, list_findings
from attncheck.stacks.upgrade.planned import list_changes, plan_snapshot, withhold
from attncheck.stacks.upgrade.requests import RequestedPackage, UpgradeRequest
from attncheck.stacks.upgrade.requirements import is_met_by_installer, list_broken_requirements, list_moved_along
from attncheck.stacks.upgrade.wheel_fit import list_misfits
from attncheck.workers.overlay import package_overlay

Progress = Callable[[str], None]
OFFLINE = ("--no-index",)  # for the installer, which unpacks a wheel into a folder


@dataclass(frozen=True)
class Prediction:
    """What is judged without a run. `metadata` are findings that hold whatever a trial shows."""

    basis: Basis
    comparison: Comparison
    metadata: tuple[Finding, ...]
    not_known: tuple[str, ...]


def predict_upgrade(
    request: UpgradeRequest, before: Snapshot, judging: Judging, all_requirements: bool, read: Snapshot | None = None
) -> Prediction:
    """Return what the new versions would break and mend: pure judging.

    `read` is the environment with the wheels that are at hand, by the static lane. `all_requirements`: `before` holds
    what packages outside the attention stack require too.
    """
    packages = list_changes(before, request.packages)
    changed = {package.name for package in packages}
    basis: Basis = "predicted" if read is None else "read"
    planned = plan_snapshot(before, packages)
    if read is not None:  # what it has of its own, and of the others the plan
        unread = tuple(package for package in packages if package.wheel is None)
        planned = plan_snapshot(_with_metadata_of(read, planned), unread)
    known = list_findings(before, judging)
    old = withhold(before, changed, keep_links=read is not None)
    new = withhold(planned, changed, keep_links=read is not None)
    comparison = compare_snapshots(old, new, judging, known)
    breaks = tuple(finding for finding in comparison.breaks if not is_met_by_installer(finding, changed))
    metadata = (
        *list_misfits(planned, packages),
        *list_broken_requirements(before, planned, changed, breaks),
        *list_moved_along(planned, packages),
    )
    predicted = (*breaks, *list_outdated_builds(before, planned, changed, breaks))
    open_questions = (
        *not_known.list_open_questions(before, packages, basis, all_requirements),
        *not_known.list_import_findings(known, list_findings(old, judging), changed),
        *comparison.not_judged,
    )
    return Prediction(
        basis,
        replace(comparison, breaks=_select(predicted, judging)),
        _select(metadata, judging),
        tuple(dict.fromkeys(open_questions)),
    )


def _with_metadata_of(read: Snapshot, planned: Snapshot) -> Snapshot:
    """Return the snapshot that was read, with the local part of versions that wheels' names have and METADATA drops."""
    named = {entry.name: entry for entry in planned.distributions}

    def correct(entry: Distribution) -> Distribution:
        wanted = named.get(entry.name)
        if wanted is not None and wanted.version.partition("+")[0] == entry.version and "+" in wanted.version:
            return replace(entry, version=wanted.version)
        return entry

    return replace(read, distributions=tuple(map(correct, read.distributions)))


def _select(findings: Sequence[Finding], judging: Judging) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if is_selected(finding.code, judging.select, judging.ignore))


def read_wheels(
    python: str,
    packages: tuple[RequestedPackage, ...],
    model: str | None,
    before: Snapshot,
    seconds: float,
    report_progress: Progress,
) -> Snapshot:
    """Return the environment with the wheels that are at hand, as their files tell: nothing is imported or fetched.

    Raises `Unanswered` where they cannot be unpacked.
    """
    paths = [package.wheel.path for package in packages if package.wheel is not None]
    if not all(os.path.isfile(path) for path in paths):
        raise Unanswered("a wheel is gone")
    with package_overlay(python, paths, report_progress, options=OFFLINE) as folder:
        return collect_beside(python, str(folder), ("static",), model, before, seconds, report_progress)

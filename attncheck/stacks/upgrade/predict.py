"""Judges an upgrade without running it: by tables and metadata, and by the new code if its wheel is available."""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from packaging.version import Version

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.io.errors import Unanswered
from attncheck.core.results.upgrade import Basis
from attncheck.core.snapshot import Distribution, Known, Snapshot
from attncheck.doctor import engine
from attncheck.doctor.knowledge import liger, ring_flash_attn, transformers
from attncheck.doctor.queries.packages import torch_minor_version
from attncheck.doctor.repair.overlays import collect_beside
from attncheck.stacks.diff.one_sided import make_key
from attncheck.stacks.upgrade.compare import Comparison, Judging, compare_snapshots, list_findings, select_findings
from attncheck.stacks.upgrade.planned import TORCH_LIBRARIES, list_changes, plan_snapshot, withhold
from attncheck.stacks.upgrade.requests import RequestedPackage, UpgradeRequest
from attncheck.stacks.upgrade.requirements import is_met_by_installer, list_broken_requirements, list_moved_along
from attncheck.stacks.upgrade.wheel_fit import list_misfits
from attncheck.workers.overlay import package_overlay

# The newest release in the tables of doctor/knowledge, by package. For torch and flash-attn they hold builds.
TABLE_ENDS = {
    "transformers": transformers.LAST_RELEASE_READ,
    "ring-flash-attn": ring_flash_attn.LAST_RELEASE_READ,
    "liger-kernel": liger.LAST_RELEASE_READ,
}
BUILDS_ALONE = ("torch", "triton", "flash-attn", "flash-attn-3", "flash-attn-4")


def list_open_questions(packages: tuple[RequestedPackage, ...], basis: Basis, all_requirements: bool) -> Iterator[str]:
    """Yield, in lines, what is unknown about an upgrade that is judged on `basis`."""
    if basis == "tried":
        return
    for package in packages:
        subject = f"{package.name} {package.version}"
        if package.wheel is None:
            yield f"{subject}: {_describe_table(package)}"
            yield f"{subject}: its requirements and removed names: no wheel was read (name its file, or use --try)"
        elif basis == "predicted":
            yield f"{subject}: {_describe_table(package)}; only the metadata of its wheel was read, not its code"
    yield "whether it can be imported, computes correctly and trains: nothing was run (use --try)"
    if not all_requirements:
        yield "the requirements of packages outside the attention stack: not part of a recorded snapshot"
    if any(package.name == "torch" for package in packages):
        yield "whether packages compiled against torch still load: only a run can tell"


def list_unknown(before: Snapshot, packages: tuple[RequestedPackage, ...]) -> tuple[str, ...]:
    """Return a line if nothing is known about these releases; () if a table, a wheel or the environment knows one.

    For an installed package without a table, the requirements of the others were judged.
    """
    reasons = []
    for package in packages:
        end = TABLE_ENDS.get(package.name)
        if package.wheel is not None or package.name in BUILDS_ALONE:
            return ()
        is_installed = isinstance(before.package(package.name), Known)
        if is_installed if end is None else Version(package.version) <= Version(end):
            return ()
        reasons.append(f"no table has {package.name}" if end is None else f"the tables of {package.name} end at {end}")
    return (f"unknown: {'; '.join(reasons)}",) if reasons else ()


def _describe_table(package: RequestedPackage) -> str:
    end = TABLE_ENDS.get(package.name)
    if end is None:
        what = "only its builds are listed" if package.name in BUILDS_ALONE else "its releases are in no table"
        return f"{what}, so changes in its code are not judged"
    if Version(package.version) > Version(end):
        return f"the tables end at {end}; later changes are unknown"
    return f"the tables cover releases up to {end}, and only known breakages"


def list_import_findings(known: tuple[Finding, ...], withheld: tuple[Finding, ...], changed: set[str]) -> Iterator[str]:
    """Yield the findings on the environment that a plan cannot judge, if they name a package that would change."""
    keys = {make_key(finding) for finding in withheld}
    for finding in known:
        text = "\n".join((finding.subject, finding.message, *finding.evidence)).lower().replace("_", "-")
        if make_key(finding) not in keys and any(name in text for name in changed):
            yield (
                f"whether it fixes {finding.code} ({finding.subject or finding.name}): only an import "
                "or a build can tell"
            )


BUILD_FOR_OTHER_TORCH = "ATN923"


def list_outdated_builds(
    before: Snapshot, planned: Snapshot, changed: Collection[str], findings: Collection[Finding]
) -> Iterator[Finding]:
    """Yield a finding for each package with extensions for the replaced torch, if torch's minor version changes.

    `findings` are the rules' findings on the plan; a package that one of them is about is left out.
    """
    if not (isinstance(before.torch, Known) and isinstance(planned.torch, Known)):
        return
    old, new = torch_minor_version(before.torch.value), torch_minor_version(planned.torch.value)
    if not old or not new or old == new:
        return
    paths: dict[str, list[str]] = {}
    reported = {finding.subject.partition(" ")[0] for finding in findings}
    for binary in before.binaries:
        is_linked = any(name.startswith(TORCH_LIBRARIES) for name in binary.needed)
        if is_linked and binary.distribution not in (*changed, *reported, "torch", ""):
            paths.setdefault(binary.distribution, []).append(binary.path)
    for name, files in sorted(paths.items()):
        package = before.package(name)
        version = package.value.version if isinstance(package, Known) else ""
        subject = f"{name} {version}".strip()
        message = f"{subject} is compiled against torch {old}, but torch would be {planned.torch.value.version}"
        fix = Fix(f"upgrade it too, to a build for torch {new}", "manual", f"attncheck upgrade torch==… {name}==…")
        evidence = (f"linked against torch's libraries: {', '.join(files[:3])}",)
        yield engine.make_finding_by_code(
            BUILD_FOR_OTHER_TORCH, Problem(message, evidence, (fix,), subject, predicted=True)
        )


Progress = Callable[[str], None]
OFFLINE = ("--no-index",)  # for the installer, which unpacks a wheel into a folder


@dataclass(frozen=True)
class Prediction:
    """The judgement without a run. The findings in `metadata` hold regardless of a trial."""

    basis: Basis
    comparison: Comparison
    metadata: tuple[Finding, ...]
    unknown: tuple[str, ...]


def predict_upgrade(
    request: UpgradeRequest, before: Snapshot, judging: Judging, all_requirements: bool, read: Snapshot | None = None
) -> Prediction:
    """Return what the new versions would break and fix, from data alone.

    `read` is the environment with the available wheels, by the static lane. With `all_requirements`, `before` also
    holds the requirements of packages outside the attention stack.
    """
    packages = list_changes(before, request.packages)
    changed = {package.name for package in packages}
    basis: Basis = "predicted" if read is None else "read"
    planned = plan_snapshot(before, packages)
    if read is not None:  # facts about this package from its wheel, about the others from the plan
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
        *list_open_questions(packages, basis, all_requirements),
        *list_import_findings(known, list_findings(old, judging), changed),
        *comparison.not_judged,
    )
    return Prediction(
        basis,
        replace(comparison, breaks=select_findings(predicted, judging)),
        select_findings(metadata, judging),
        tuple(dict.fromkeys(open_questions)),
    )


def _with_metadata_of(read: Snapshot, planned: Snapshot) -> Snapshot:
    """Return the read snapshot with local version parts from the wheels' names, which METADATA lacks."""
    named = {entry.name: entry for entry in planned.distributions}

    def correct(entry: Distribution) -> Distribution:
        wanted = named.get(entry.name)
        if wanted is not None and wanted.version.partition("+")[0] == entry.version and "+" in wanted.version:
            return replace(entry, version=wanted.version)
        return entry

    return replace(read, distributions=tuple(map(correct, read.distributions)))


def read_wheels(
    python: str,
    packages: tuple[RequestedPackage, ...],
    model: str | None,
    before: Snapshot,
    seconds: float,
    report_progress: Progress,
) -> Snapshot:
    """Return the environment with the available wheels, from their files; nothing is imported or downloaded.

    Raises `Unanswered` if they cannot be unpacked.
    """
    paths = [package.wheel.path for package in packages if package.wheel is not None]
    if not all(os.path.isfile(path) for path in paths):
        raise Unanswered("a wheel no longer exists")
    with package_overlay(python, paths, report_progress, options=OFFLINE) as folder:
        return collect_beside(python, str(folder), ("static",), model, before, seconds, report_progress)

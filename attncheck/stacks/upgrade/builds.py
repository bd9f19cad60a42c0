"""Compiled packages that stay while torch moves to another minor version."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.queries.packages import torch_minor_version
from attncheck.stacks.upgrade.planned import TORCH_LIBRARIES

BUILD_FOR_OTHER_TORCH = "ATN923"


def list_outdated_builds(
    before: Snapshot, planned: Snapshot, changed: Collection[str], findings: Collection[Finding]
) -> Iterator[Finding]:
    """Yield a finding for each package with extensions for the torch that goes, where its minor version moves.

    `findings` are the rules' on the plan: a package that one of them is about is left to it.
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
        message = f"{subject} is compiled against torch {old}, and torch {planned.torch.value.version} would be there"
        fix = Fix(f"move it along, in a build for torch {new}", "manual", f"attncheck upgrade torch==… {name}==…")
        evidence = (f"linked against torch's libraries: {', '.join(files[:3])}",)
        yield engine.make_finding_by_code(
            BUILD_FOR_OTHER_TORCH, Problem(message, evidence, (fix,), subject, predicted=True)
        )

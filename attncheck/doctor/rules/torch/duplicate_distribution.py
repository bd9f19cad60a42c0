"""One folder has metadata of two versions of a package.

What it checks: two `*.dist-info` of one project in one site directory, for torch, flash-attn and related packages.
The same project in two directories of sys.path is normal for virtual environments with system packages, and is not
reported.

Why it matters: the cause is an interrupted upgrade, or conda and pip in one environment. Version checks read one
version, but the files belong to the other, so the right kernel is refused or the wrong one accepted.

What to do: uninstall the package repeatedly until the installer says that it is not installed, then install it once.

Source: packaging.python.org, "Recording installed projects" (one .dist-info per project);
Dao-AILab/flash-attention#469.
"""

from collections import defaultdict
from collections.abc import Iterator

from attncheck.doctor.fixes import flash_attn_fixes, install
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.rules import Distribution, Fix, Problem, Problems, Rule, Snapshot

ALSO_WATCHED = frozenset({"numpy", "einops"})


def check(snapshot: Snapshot) -> Problems:
    copies_by_location: dict[tuple[str, str], list[Distribution]] = defaultdict(list)
    for distribution in snapshot.distributions:
        left_behind = distribution.problem.startswith("left behind")
        if distribution.name in RELEVANT_DISTRIBUTIONS | ALSO_WATCHED and not left_behind:
            copies_by_location[distribution.name, distribution.location].append(distribution)
    for (name, location), copies in copies_by_location.items():
        versions = sorted({copy.version or "?" for copy in copies})
        if len(versions) < 2:
            continue
        yield Problem(
            message=f"{name} is recorded in {len(copies)} versions in one folder: {', '.join(versions)}",
            subject=name,
            evidence=(f"static lane: {location}",),
            fixes=tuple(_fixes(snapshot, name, copies)),
        )


def _fixes(snapshot: Snapshot, name: str, copies: list[Distribution]) -> Iterator[Fix]:
    remove = install.uninstall_packages(snapshot, name).text
    yield Fix(f"remove every copy of {name}", "command", " && ".join([remove] * len(copies)), "unsafe")
    if name == "flash-attn":
        yield from flash_attn_fixes(snapshot)[:1]
    else:
        yield install.install_packages(snapshot, f"{name}=={copies[0].version}", options=("--no-deps",))


RULE = Rule("ATN116", "warning", check)

"""What pip would change besides the named packages, and which of these a temporary folder can hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.io.errors import Unanswered
from attncheck.core.results.upgrade import ChangedPackage
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.repair.unmet_requirements import NEVER_INSTALLED
from attncheck.stacks.upgrade.planned import describe_version
from attncheck.stacks.upgrade.requests import RequestedPackage
from attncheck.stacks.upgrade.requirements import MOVES_TORCH
from attncheck.workers.overlay import ResolvedPackage, parse_uv_changes, resolve_with_pip, resolve_with_uv


@dataclass(frozen=True)
class Moves:
    """What an installer would do: other changed packages, those in the folder, and those that cannot be tried."""

    along: tuple[ChangedPackage, ...]
    tried: tuple[str, ...]  # requirements, or paths of wheels
    not_tried: tuple[str, ...]  # lines, each naming a package


def resolve_moves(
    python: str,
    packages: tuple[RequestedPackage, ...],
    before: Snapshot,
    options: Sequence[str],
    report_progress: Callable[[str], None],
) -> Moves:
    """Return the changes that an installer would make. Raises `Unanswered` if it finds no solution."""
    requirements = [package.requirement for package in packages if not _is_never_fetched(package)]
    resolved = _resolve(python, requirements, options, report_progress) if requirements else ()
    return sort_moves(packages, before, resolved)


def _resolve(
    python: str, requirements: Sequence[str], options: Sequence[str], report_progress: Callable[[str], None]
) -> tuple[ResolvedPackage, ...]:
    """Return what the environment's pip would install, or uv if it has no suitable pip."""
    try:
        return resolve_with_pip(python, requirements, report_progress, options)
    except Unanswered:
        answer = resolve_with_uv(python, [*options, *requirements], report_progress)
        if not parse_uv_changes(answer):
            raise
        return tuple(ResolvedPackage(name, version) for sign, name, version in parse_uv_changes(answer) if sign == "+")


def _is_never_fetched(package: RequestedPackage) -> bool:
    return package.wheel is None and package.name.startswith(NEVER_INSTALLED)


def sort_moves(packages: tuple[RequestedPackage, ...], before: Snapshot, resolved: Sequence[ResolvedPackage]) -> Moves:
    """Return pip's answer as the other changes, the packages that can be tried and those that cannot."""
    named = {package.name: package for package in packages}
    along, tried, not_tried = [], [], []
    for package in packages:
        if _is_never_fetched(package):
            not_tried.append(f"{package.name} {package.version}: {_explain_untried(package.name)}")
        else:
            tried.append(package.requirement)
    for entry in resolved:
        name = canonical_name(entry.name)
        if name in named:
            continue
        along.append(ChangedPackage(name, describe_version(before, name), entry.version, named=False))
        if name.startswith(NEVER_INSTALLED):
            not_tried.append(f"{name} {entry.version}, which changes too: {_explain_untried(name)}")
        else:
            tried.append(f"{entry.name}=={entry.version}")
    along.sort(key=lambda change: (change.name != "torch", change.name))
    return Moves(tuple(along), tuple(tried), tuple(not_tried))


def _explain_untried(name: str) -> str:
    if name.startswith("flash-attn"):
        return "it is compiled for a specific torch, Python and machine; name the wheel's file to try it"
    return (
        "it takes gigabytes, and the installed packages are compiled for the installed torch; name the wheel's file "
        "to try it"
    )


def list_torch_moves(moves: Moves, packages: tuple[RequestedPackage, ...]) -> tuple[Finding, ...]:
    """Return the finding that pip would change torch, if torch was not named."""
    torch = next((change for change in moves.along if change.name == "torch"), None)
    if torch is None or not torch.before:
        return ()
    subject = " ".join(f"{package.name} {package.version}" for package in packages)
    fix = Fix(
        "keep the installed version, and list the releases that are compatible with it",
        "manual",
        f"pip install --dry-run … torch=={torch.before}",
    )
    message = f"pip would change torch {torch.before} to {torch.after} for {subject}"
    problem = Problem(message, ("pip install --dry-run",), (fix,), subject)
    return (engine.make_finding_by_code(MOVES_TORCH, problem),)

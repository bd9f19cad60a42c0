"""What nobody can know before an upgrade, by package: said, so that no finding is not taken for "fine"."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.facts import Known
from attncheck.core.findings import Finding
from attncheck.core.results.upgrade import Basis
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge import liger, ring_flash_attn, transformers
from attncheck.stacks.diff.one_sided import make_key
from attncheck.stacks.upgrade.requests import RequestedPackage

# The newest release that the tables of doctor/knowledge hold, by package. Of torch and flash-attn they hold builds.
TABLE_ENDS = {
    "transformers": transformers.LAST_RELEASE_READ,
    "ring-flash-attn": ring_flash_attn.LAST_RELEASE_READ,
    "liger-kernel": liger.LAST_RELEASE_READ,
}
BUILDS_ALONE = ("torch", "triton", "flash-attn", "flash-attn-3", "flash-attn-4")


def list_open_questions(
    before: Snapshot, packages: tuple[RequestedPackage, ...], basis: Basis, all_requirements: bool
) -> Iterator[str]:
    """Yield in lines what is not known of an upgrade that stands on `basis`."""
    if basis == "tried":
        return
    for package in packages:
        subject = f"{package.name} {package.version}"
        if package.wheel is None:
            yield f"{subject}: {_describe_table(package)}"
            yield f"{subject}: its own requirements, and names that went: no wheel was read (name its file, or --try)"
        elif basis == "predicted":
            yield f"{subject}: {_describe_table(package)}; of its wheel the metadata was read, and not its code"
    yield "whether it imports, computes right and trains: nothing was run (--try)"
    if not all_requirements:
        yield "what packages outside the attention stack require: a recorded snapshot does not hold it"
    if any(package.name == "torch" for package in packages):
        yield "whether what is compiled against torch still loads: no table knows that, only a run"


def list_unknown(before: Snapshot, packages: tuple[RequestedPackage, ...]) -> tuple[str, ...]:
    """Return in a line that nothing is known of these releases, () if a table, a wheel or what is installed knows one.

    Of an installed package without a table the requirements of the others were judged.
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
    return (f"not known: {'; '.join(reasons)}",) if reasons else ()


def _describe_table(package: RequestedPackage) -> str:
    end = TABLE_ENDS.get(package.name)
    if end is None:
        what = "builds alone are tabled" if package.name in BUILDS_ALONE else "no table knows its releases"
        return f"{what}, so that changes of its code are not judged"
    if Version(package.version) > Version(end):
        return f"the tables end at {end}; what changed later is not known"
    return f"the tables know the releases to {end}, and of them only what broke before"


def list_import_findings(known: tuple[Finding, ...], withheld: tuple[Finding, ...], changed: set[str]) -> Iterator[str]:
    """Yield the findings on what is installed that a plan cannot judge, where they name what would move."""
    keys = {make_key(finding) for finding in withheld}
    for finding in known:
        text = "\n".join((finding.subject, finding.message, *finding.evidence)).lower().replace("_", "-")
        if make_key(finding) not in keys and any(name in text for name in changed):
            yield f"whether it mends {finding.code} ({finding.subject or finding.name}): an import or a build shows it"

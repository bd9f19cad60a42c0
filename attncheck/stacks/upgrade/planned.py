"""The planned environment and the current one, as far as the same facts are known about both."""

from dataclasses import replace

from attncheck.core.links import UnresolvedName
from attncheck.core.snapshot import NOT_ASKED, Absent, Distribution, Fact, Known, Snapshot
from attncheck.doctor.target import with_version
from attncheck.stacks.upgrade.requests import RequestedPackage

TORCH_LIBRARIES = ("libtorch", "libc10")


def plan_snapshot(before: Snapshot, packages: tuple[RequestedPackage, ...]) -> Snapshot:
    """Return the snapshot with the packages in their new versions; nothing is known about their files."""
    planned = before
    for package in list_changes(before, packages):
        planned = with_version(planned, package.name, package.version)
        distributions = tuple(
            _with_metadata(entry, package) if entry.name == package.name else entry for entry in planned.distributions
        )
        builds = tuple(build for build in planned.builds if build.distribution != package.name)
        planned = replace(planned, distributions=distributions, builds=builds)
    return planned


def list_changes(before: Snapshot, packages: tuple[RequestedPackage, ...]) -> tuple[RequestedPackage, ...]:
    """Return the packages with another version than the installed one, whose local part ("+cpu") may differ."""
    return tuple(package for package in packages if not _is_installed(before, package))


def _is_installed(before: Snapshot, package: RequestedPackage) -> bool:
    installed = describe_version(before, package.name)
    return installed == package.version or ("+" not in package.version and installed.startswith(f"{package.version}+"))


def describe_version(snapshot: Snapshot, name: str) -> str:
    """Return the installed version of a package; "" if it is not installed or unknown."""
    installed = snapshot.package(name)
    return installed.value.version if isinstance(installed, Known) else ""


def _with_metadata(distribution: Distribution, package: RequestedPackage) -> Distribution:
    if package.wheel is None:
        return distribution
    wheel = package.wheel
    return replace(
        distribution,
        requires=wheel.requires,
        requires_python=wheel.requires_python,
        wheel_tags=tuple(sorted(wheel.tags)),
    )


def withhold(snapshot: Snapshot, changed: set[str], keep_links: bool) -> Snapshot:
    """Return the snapshot without facts that a plan cannot know: results of imports, builds for the replaced torch.

    With `keep_links` the imports between the sources are kept, but not their results.
    """
    links: Fact[tuple[UnresolvedName, ...]] = Absent(NOT_ASKED)
    if keep_links and isinstance(snapshot.links, Known):
        links = Known(tuple(replace(link, outcome="", error="") for link in snapshot.links.value))
    model = snapshot.model
    if isinstance(model, Known) and not keep_links:
        model = Known(replace(model.value, links=Absent(NOT_ASKED)))
    if isinstance(model, Known) and "transformers" in changed:
        model = Known(replace(model.value, accepts=Absent(NOT_ASKED)))
    binaries = snapshot.binaries
    if "torch" in changed:
        binaries = tuple(
            binary for binary in binaries if not any(name.startswith(TORCH_LIBRARIES) for name in binary.needed)
        )
    return replace(
        snapshot,
        imports=Absent(NOT_ASKED),
        interfaces=Absent(NOT_ASKED),
        links=links,
        model=model,
        binaries=binaries,
    )

"""The changes among packages and in Python: missing, another version, another build, new."""

from collections.abc import Iterator

from attncheck.core.findings import Fix, Problem
from attncheck.core.lock import Lock, LockedPackage
from attncheck.core.results.lock import Move
from attncheck.core.snapshot import Absent, Fact, Known, Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.torch_builds import INDEX_URL
from attncheck.stacks.lock import judged
from attncheck.stacks.lock.judged import JudgedMove


def restore_package(snapshot: Snapshot, locked: LockedPackage, force: bool = False) -> Fix:
    """Return how to install the lock's version of a package: a command if an index has it, otherwise a description.

    `force` reinstalls the same version.
    """
    title = f"return to the lock's {locked.name} {locked.version}"
    if not locked.from_index:
        source = f"with {locked.installer}" if locked.installer and locked.installer not in ("pip", "uv") else ""
        tags = f"; its wheel was {', '.join(locked.wheel_tags)}" if locked.wheel_tags else ""
        how = source or "from its original source: no index is known to have this build"
        return Fix(title, "manual", f"install {locked.name} {locked.version} {how}{tags}")
    local = locked.version.partition("+")[2]
    options = ("--index-url", f"{INDEX_URL}/{local}") if local else ()
    if force:
        options = ("--no-deps", "--force-reinstall", *options)
    return install.install_packages(snapshot, f"{locked.name}=={locked.version}", options=options, title=title)


NEW = "not in the lock"
GONE = "not installed"


def compare_packages(
    locked: Lock, now: Lock, snapshot: Snapshot, measured: str, unchanged: bool
) -> Iterator[JudgedMove]:
    """Yield the changes among packages; `measured` describes the measurements since, `unchanged` that none is worse."""
    code = judged.STACK_MOVED if unchanged else judged.STACK_MOVED_UNMEASURED
    for package in locked.packages:
        installed = now.package(package.name)
        if installed is None:
            yield _describe_missing(package, snapshot)
        elif (before_and_now := _describe_difference(package, installed)) is not None:
            before, after = before_and_now
            fix = restore_package(snapshot, package, force=package.version == installed.version)
            yield _describe_moved(code, package.name, before, after, measured, fix)
    for package in now.packages:
        if locked.package(package.name) is None:
            yield _describe_moved(code, package.name, NEW, package.version, measured)
    yield from _compare_python(locked, now, code, measured)


def _describe_difference(before: LockedPackage, now: LockedPackage) -> tuple[str, str] | None:
    """Return both sides in words, None if they are the same as far as both are known."""
    if before.version != now.version:
        return before.version, now.version
    if before.wheel_tags and now.wheel_tags and before.wheel_tags != now.wheel_tags:
        return f"{before.version} ({', '.join(before.wheel_tags)})", f"{now.version} ({', '.join(now.wheel_tags)})"
    if before.record_sha256 and now.record_sha256 and before.record_sha256 != now.record_sha256:
        return (
            f"{before.version} (content {before.record_sha256[:12]})",
            f"{now.version} (content {now.record_sha256[:12]})",
        )
    return None


def _describe_missing(package: LockedPackage, snapshot: Snapshot) -> JudgedMove:
    problem = Problem(
        f"{package.name} is not installed; the lock has {package.version}",
        (),
        (restore_package(snapshot, package),),
        package.name,
    )
    return judged.harmful(judged.PACKAGE_MISSING, Move(package.name, package.version, GONE), problem)


def _describe_moved(code: str, name: str, before: str, after: str, measured: str, *fixes: Fix) -> JudgedMove:
    message = f"{name} is {after}, and {NEW}" if before == NEW else f"{name} is {after}; the lock has {before}"
    problem = Problem(message, (measured,), fixes, name)
    return judged.harmful(code, Move(name, before, after, reason=measured), problem)


def _compare_python(locked: Lock, now: Lock, code: str, measured: str) -> Iterator[JudgedMove]:
    pairs = (
        ("python", f"{locked.python} ({locked.python_abi})", f"{now.python} ({now.python_abi})"),
        ("platform", locked.platform, now.platform),
    )
    for name, before, after in pairs:
        if before != after:
            yield _describe_moved(code, name, before, after, measured)
    before_cuda, now_cuda = _describe_cuda(locked.torch_cuda), _describe_cuda(now.torch_cuda)
    torch_is_here = locked.package("torch") is not None and now.package("torch") is not None
    if torch_is_here and before_cuda and now_cuda and before_cuda != now_cuda:
        yield _describe_moved(code, "CUDA of torch", before_cuda, now_cuda, measured)


def _describe_cuda(fact: Fact[str]) -> str:
    """Return the CUDA version that torch was built with, "none" for a build without; "" if unknown."""
    if isinstance(fact, Known):
        return fact.value
    return "none" if isinstance(fact, Absent) else ""

"""The commands that bring a package back to what the lock has."""

from __future__ import annotations

from attncheck.core.findings import Fix
from attncheck.core.lock import LockedPackage
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.torch_builds import INDEX_URL


def restore_package(snapshot: Snapshot, locked: LockedPackage, force: bool = False) -> Fix:
    """Return how to install the lock's version of a package: a command where an index has it, else in words.

    `force` lays down the same version anew.
    """
    title = f"go back to the lock's {locked.name} {locked.version}"
    if not locked.from_index:
        source = f"with {locked.installer}" if locked.installer and locked.installer not in ("pip", "uv") else ""
        tags = f"; its wheel was {', '.join(locked.wheel_tags)}" if locked.wheel_tags else ""
        how = source or "from where it came: no index is known to have this build"
        return Fix(title, "manual", f"install {locked.name} {locked.version} {how}{tags}")
    local = locked.version.partition("+")[2]
    options = ("--index-url", f"{INDEX_URL}/{local}") if local else ()
    if force:
        options = ("--no-deps", "--force-reinstall", *options)
    return install.install_packages(snapshot, f"{locked.name}=={locked.version}", options=options, title=title)

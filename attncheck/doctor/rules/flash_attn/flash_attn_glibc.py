"""flash-attn's extension needs a newer glibc than this machine has.

What it checks: the highest GLIBC version that the extension asks for against the machine's; where the import was
tried, its outcome decides.

Why it matters: `import flash_attn` raises "version `GLIBC_2.32' not found". The published wheels of 2.8 need glibc
2.32 and carry no manylinux tag, so pip installs them on Ubuntu 20.04 and RHEL 8 all the same.

What to do: 2.7.4.post1 is built on an older system where a wheel of it fits; otherwise build on the machine itself.

Source: Dao-AILab/flash-attention#1762, #1708, #2225; .github/workflows/publish.yml at v2.7.4.post1 (ubuntu-20.04)
and v2.8.3 (ubuntu-22.04).
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.flash_attn import install_flash_attn
from attncheck.doctor.queries.packages import (
    flash_binary,
    flash_failure,
    flash_fault,
    needed_glibc,
    says_available,
    told,
    torch_works,
)
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the machine's glibc is too old for the extension."""
    if flash_fault(snapshot) != "glibc" or not torch_works(snapshot):
        return
    failure, binary = flash_failure(snapshot), flash_binary(snapshot)
    needed = (needed_glibc(failure.message) if failure else "") or (binary.glibc_required if binary else "")
    glibc = snapshot.host.glibc
    here = f"this machine has {glibc.value}" if isinstance(glibc, Known) else "this machine has an older one"
    found = snapshot.package("flash-attn")
    version = found.value.version if isinstance(found, Known) else ""
    yield Problem(
        message=f"flash-attn {version} needs glibc {needed}, {here}",
        subject=f"flash-attn {version}",
        evidence=(
            told(failure) if failure else f"static lane: {binary.path if binary else ''} asks for GLIBC_{needed}",
            *says_available(snapshot),
        ),
        fixes=install_flash_attn(snapshot),
    )


RULE = Rule("ATN106", "error", check, needs=frozenset({"flash", "ring"}))

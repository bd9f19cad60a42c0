"""flash-attn's extension needs a newer glibc than this machine has.

What it checks: the highest GLIBC version that the extension requires against the machine's; if the import was
tried, its outcome decides.

Why it matters: `import flash_attn` raises "version `GLIBC_2.32' not found". The published wheels of 2.8 need glibc
2.32 and carry no manylinux tag, so pip installs them on Ubuntu 20.04 and RHEL 8 anyway.

What to do: use 2.7.4.post1, which was built on an older system, if a compatible wheel exists. Otherwise build on this
machine.

Source: Dao-AILab/flash-attention#1762, #1708, #2225; .github/workflows/publish.yml at v2.7.4.post1 (ubuntu-20.04)
and v2.8.3 (ubuntu-22.04).
"""

from attncheck.doctor.fixes.flash_attn import flash_attn_fixes
from attncheck.doctor.queries import (
    availability_evidence,
    describe_failed_import,
    diagnose_flash_attn,
    flash_attn_extension,
    flash_attn_import_failure,
    may_import,
    need_torch,
    parse_required_glibc,
)
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, only_if


@only_if(may_import, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    if diagnose_flash_attn(snapshot) != "glibc":
        return
    need_torch(snapshot)  # no wheel can be chosen without torch
    failure, binary = flash_attn_import_failure(snapshot), flash_attn_extension(snapshot)
    required = (parse_required_glibc(failure.message) if failure else "") or (binary.glibc_required if binary else "")
    glibc = snapshot.host.glibc
    host_glibc = f"this machine has {glibc.value}" if isinstance(glibc, Known) else "this machine has an older one"
    package = snapshot.package("flash-attn")
    version = package.value.version if isinstance(package, Known) else ""
    static = f"static lane: {binary.path if binary else ''} needs GLIBC_{required}"
    yield Problem(
        message=f"flash-attn {version} needs glibc {required}, {host_glibc}",
        subject=f"flash-attn {version}",
        evidence=(describe_failed_import(failure) if failure else static, *availability_evidence(snapshot)),
        fixes=flash_attn_fixes(snapshot),
    )


RULE = Rule("ATN106", "error", check, needs=frozenset({"flash", "ring"}))

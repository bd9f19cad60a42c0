"""A compiled file is truncated or damaged.

What it checks: whether the libraries of torch and the extensions of the attention stack can be read completely as ELF
files. If the import lane imported a package that needs them, they are not reported.

Why it matters: a full disk or a broken copy leaves a truncated file. The loader says "file too short" or the process
dies with SIGBUS, only on the node with the bad copy.

What to do: reinstall the package.

Source: the System V ABI, chapter 5 (program loading); glibc `elf/dl-load.c` ("file too short").
"""

from attncheck.doctor.fixes.torch import reinstall_from_own_index
from attncheck.doctor.queries.packages import can_import, find_failed_import
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot

DAMAGE_PREFIXES = ("truncated", "damaged")
REPORTED_ELSEWHERE = ("torch", "flash-attn", "flash-attn-3")  # ATN102, ATN108 and ATN126 report their failed imports


def check(snapshot: Snapshot) -> Problems:
    reported = set()
    for binary in snapshot.binaries:
        name = binary.distribution
        package = snapshot.package(name)
        module = "torch" if name == "torch" else binary.module
        if not binary.problem.startswith(DAMAGE_PREFIXES) or not isinstance(package, Known) or name in reported:
            continue
        if can_import(snapshot, module) or (name in REPORTED_ELSEWHERE and find_failed_import(snapshot, module)):
            continue
        reported.add(name)
        yield Problem(
            message=f"{binary.path} of {name} {package.value.version} is {binary.problem}",
            subject=f"{name} {package.value.version}",
            evidence=(f"static lane: {binary.size_bytes} bytes, {binary.problem}",),
            fixes=(reinstall_from_own_index(snapshot, package.value),),
        )


RULE = Rule("ATN129", "error", check)

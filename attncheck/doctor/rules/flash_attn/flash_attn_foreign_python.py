"""flash-attn's extension is built for a different Python.

What it checks: the tag in the extension's file name against the interpreter.

Why it matters: Python ignores the file, so `import flash_attn` raises "No module named 'flash_attn_2_cuda'" although
the file exists. The cause is a copied site-packages folder, or a wheel installed with the wrong pip.

What to do: install flash-attn with the pip of this interpreter.

Source: PEP 3149; Python's importlib.machinery.EXTENSION_SUFFIXES.
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
)
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, need, only_if


@only_if(may_import, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    binary = flash_attn_extension(snapshot)
    if diagnose_flash_attn(snapshot) != "foreign-python" or binary is None:
        return
    need_torch(snapshot)  # no wheel can be chosen without torch
    version = need(snapshot.package("flash-attn"), "flash-attn").version
    failure = flash_attn_import_failure(snapshot)
    yield Problem(
        message=f"flash-attn {version} was built for another Python: {binary.problem}",
        subject=f"flash-attn {version}",
        evidence=(
            f"static lane: {binary.path}",
            *((describe_failed_import(failure),) if failure else ()),
            *availability_evidence(snapshot),
        ),
        fixes=flash_attn_fixes(snapshot),
    )


RULE = Rule("ATN107", "error", check, needs=frozenset({"flash", "ring"}))

"""Later releases fixed something that this launch uses.

What it checks: fixes of TRL, accelerate, PEFT, axolotl, ms-swift, LLaMA-Factory, verl, OpenRLHF, liger-kernel and
DeepSpeed since June 2025 that concern attention, packing, loss, precision or parallelism. A fix is listed if the
release has the code that the fix changes, and if the launch has the trainer and every feature that its title and files
name. The most specific ones come first.

Why it matters: many of these faults are silent, or end the job at its first step. The titles were matched, not run: a
listed fault may need something that this launch does not have.

What to do: read the titles. Upgrade if one describes your job.

Source: the git histories of these projects (tools/later_fixes.py); the numbers are their pull requests.
"""

from packaging.version import Version

from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.queries.launch import describe_job, require_job
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

MAX_SHOWN = 5


def check(snapshot: Snapshot) -> Problems:
    job = require_job(snapshot)
    shown = job.fixed_later[:MAX_SHOWN]
    if not shown:
        return
    count = len(job.fixed_later)
    more = (f"and {count - len(shown)} more",) if count > len(shown) else ()
    newest: dict[str, str] = {}
    for fix in shown:
        if fix.until:
            newest[fix.package] = max(fix.until, newest.get(fix.package, fix.until), key=Version)
    yield Problem(
        message=f"{count} fix{'es' * (count > 1)} of later releases may concern this {describe_job(job)} launch",
        evidence=(*(fix.evidence for fix in shown), *more),
        fixes=tuple(install_packages(snapshot, f"{name}>={version}") for name, version in newest.items()),
        subject=describe_job(job),
        locations=(job.location,),
    )


RULE = Rule("ATN464", "note", check, needs=frozenset({"job"}))

"""flash-attn cannot be imported.

What it checks: importing flash_attn and its extension, each in its own process. It is reported here if no other rule
names the cause (the wrong torch, CUDA, glibc or Python, or a folder that shadows it). Overwritten files are evidence.

Why it matters: flash_attention_2 fails at the first forward, because transformers reports flash-attn as available
without importing it.

What to do: install the missing module. For any other cause, install the wheel or build for this torch.

Source: the message itself; transformers 5.17.0 `utils/import_utils.py` (is_flash_attn_2_available reads metadata).
"""

import re

from attncheck.doctor.fixes import flash_attn_fixes, install
from attncheck.doctor.queries import (
    availability_evidence,
    changed_flash_attn_files,
    describe_ending,
    describe_failed_import,
    hidden_by,
    is_shadowed,
    may_import,
    require_torch,
    unexplained_flash_attn_failures,
)
from attncheck.doctor.rules import Fix, ImportOutcome, Problem, Problems, Rule, Snapshot, need, only_if

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


@only_if(may_import, "flash-attn")
@only_if(Snapshot.has, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    require_torch(snapshot)
    failures = unexplained_flash_attn_failures(snapshot)
    if failures and is_shadowed(snapshot, "flash_attn"):
        raise hidden_by("flash_attn")  # ATN118
    for failure in failures:
        yield _make_problem(snapshot, failure)


def _make_problem(snapshot: Snapshot, failure: ImportOutcome) -> Problem:
    version = need(snapshot.package("flash-attn"), "flash-attn").version
    return Problem(
        message=f"flash-attn {version} cannot be imported: {describe_ending(failure)}",
        subject=f"flash-attn {version}",
        evidence=(
            describe_failed_import(failure),
            *(f"at {frame}" for frame in failure.frames[-2:]),
            *_changed_files_evidence(snapshot),
            *availability_evidence(snapshot),
        ),
        fixes=(*install.extend_import_timeout(failure), *_fixes(snapshot, failure)),
    )


def _changed_files_evidence(snapshot: Snapshot) -> tuple[str, ...]:
    paths = changed_flash_attn_files(snapshot)
    return (f"{len(paths)} of its files are missing or changed since it was installed: {paths[0]}",) if paths else ()


def _fixes(snapshot: Snapshot, failure: ImportOutcome) -> tuple[Fix, ...]:
    missing_module = _NO_MODULE.search(failure.message)
    name = missing_module.group(1).partition(".")[0] if missing_module else ""
    if name and not name.startswith("flash_attn"):
        return (install.install_packages(snapshot, name.replace("_", "-")),)
    return flash_attn_fixes(snapshot)


RULE = Rule("ATN108", "error", check, needs=frozenset({"flash", "ring"}))

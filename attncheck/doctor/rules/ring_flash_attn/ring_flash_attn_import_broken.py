"""Importing ring-flash-attn fails, though flash-attn and transformers can be imported.

What it checks: how `import ring_flash_attn` ended in a child process. Failures that another rule explains are
reported by that rule: transformers' moved names (ATN140, ATN141, ATN143, ATN145), flash-attn missing (ATN142) or
broken, torch or transformers broken.

Why it matters: context-parallel training cannot start.

What to do: read the exception; reinstall ring-flash-attn if its files are damaged.

Source: the import lane's own observation.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.covering import require_dependencies
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, need, only_if
from attncheck.doctor.rules.ring_flash_attn import ring_flash_attn_import

DEPENDENCIES = ("torch", "transformers", "flash_attn")
FAILED_OUTCOMES = ("raised", "died", "hung")


@only_if(Snapshot.has, "ring-flash-attn")
def check(snapshot: Snapshot) -> Problems:
    outcome = need(snapshot.imported("ring_flash_attn"), "how importing ring_flash_attn ended")
    require_dependencies(snapshot, outcome, DEPENDENCIES)
    if outcome.outcome not in FAILED_OUTCOMES or f"from '{ring_flash_attn_import.MODULE}'" in outcome.message:
        return
    ring = need(snapshot.package("ring-flash-attn"), "ring-flash-attn").version
    error = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    yield Problem(
        message=f"importing ring_flash_attn {ring} {outcome.outcome}",
        subject=f"ring-flash-attn {ring}",
        evidence=(f"import lane: {error or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(
            *install.extend_import_timeout(outcome),
            install.install_packages(
                snapshot, f"ring-flash-attn=={ring}", options=("--no-deps", "--force-reinstall"), title="reinstall it"
            ),
        ),
    )


RULE = Rule("ATN144", "error", check, needs=frozenset({"ring"}))

"""liger-kernel's patches cannot be imported.

What it checks: how importing `liger_kernel.transformers` with its patches ended in a child process. Failures that other
rules explain are left to them: transformers too old (ATN150), triton missing (ATN152), torch or transformers broken.

Why it matters: `use_liger_kernel=True` stops the job, or a framework goes on without it.

What to do: install the package that it did not find; else reinstall liger-kernel, or switch it off.

Source: the import lane's own observation.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.fixes.torch import required_triton
from attncheck.doctor.knowledge import liger
from attncheck.doctor.knowledge.transformers import entry_for_version
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.covering import find_failing_package, require_dependencies
from attncheck.doctor.queries.packages import missing_module
from attncheck.doctor.rules import Fix, ImportOutcome, Known, MissingFact, Problem, Problems, Rule, Snapshot, need
from attncheck.doctor.rules.transformers.liger_without_triton import TRITON_DISTRIBUTIONS

FAILED_OUTCOMES = ("raised", "died", "hung")
DEPENDENCIES = ("torch", "triton", "transformers", "peft")


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("liger-kernel"):
        return
    outcome = need(snapshot.imported("liger_kernel.transformers"), "how importing liger_kernel ended")
    if outcome.outcome != "ok" and _is_reported_elsewhere(snapshot, outcome):
        raise MissingFact("liger-kernel lacks what it needs", ("ATN150", "ATN152"))
    require_dependencies(snapshot, outcome, DEPENDENCIES)
    if outcome.outcome not in FAILED_OUTCOMES:
        return
    liger_version = need(snapshot.package("liger-kernel"), "liger-kernel").version
    error = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    options = ("--no-deps", "--force-reinstall")
    yield Problem(
        message=f"importing liger_kernel.transformers {liger_version} {outcome.outcome}",
        subject=f"liger-kernel {liger_version}",
        evidence=(f"import lane: {error or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(
            *install.extend_import_timeout(outcome),
            Fix("do without it", "setting", "use_liger_kernel=False"),
            _install_missing(snapshot, outcome)
            or install.install_packages(
                snapshot, f"liger-kernel=={liger_version}", options=options, title="reinstall it"
            ),
        ),
    )


def _install_missing(snapshot: Snapshot, outcome: ImportOutcome) -> Fix | None:
    """Return the install of the package that the import did not find; None where it failed otherwise."""
    module = missing_module(outcome)
    if module in ("", "liger_kernel"):
        return None
    requirement = required_triton(snapshot) if module == "triton" else ""
    return install.install_packages(snapshot, requirement or module.replace("_", "-"))


def _is_reported_elsewhere(snapshot: Snapshot, outcome: ImportOutcome) -> bool:
    """Return whether ATN152 (no triton) or ATN150 (another transformers) reports it."""
    liger_version, transformers_version = snapshot.version("liger-kernel"), snapshot.version("transformers")
    if not snapshot.has(*TRITON_DISTRIBUTIONS) and find_failing_package(snapshot, outcome) in ("", "triton"):
        return bool(snapshot.visible_devices())
    if isinstance(liger_version, Known) and isinstance(transformers_version, Known):
        specifier = entry_for_version(liger.TRANSFORMERS_BY_LIGER, liger_version.value)
        return specifier is not None and not requirements.is_version_allowed(specifier, transformers_version.value)
    return False


RULE = Rule("ATN153", "error", check, needs=frozenset({"liger"}))

"""An installed framework or library cannot be imported, for a reason that no other rule names.

What it checks: the import lane's outcome for openrlhf.models, verl, trl, peft, yunchang and
transformer_engine.pytorch. A missing package (ATN130), a missing name (ATN131), and failures in torch, transformers,
flash-attn, triton or liger-kernel have their own rules and are not repeated here.

Why it matters: the job stops at this import, with any settings.

What to do: read the last line of the evidence, which shows where it fails. If the package's files changed since they
were installed, reinstall it. Otherwise run the import on its own.

Source: the import lane.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import (
    find_failed_import,
    find_failing_distribution,
    find_failing_package,
    hidden_by,
    may_import,
    package_links,
)
from attncheck.doctor.rules import Distribution, Fix, ImportOutcome, Known, Problem, Problems, Rule, Snapshot, need

MODULES = {
    "openrlhf.models": "openrlhf",
    "verl": "verl",
    "trl": "trl",
    "peft": "peft",
    "yunchang": "yunchang",
    "transformer_engine.pytorch": "transformer-engine",
}
REPORTED_ELSEWHERE = (
    "torch",
    "transformers",
    "flash_attn",
    "triton",
    "liger_kernel",
    "ring_flash_attn",
    "kernels",
    "xformers",
)


def check(snapshot: Snapshot) -> Problems:
    need(snapshot.imports, "how imports ended")
    for module, name in MODULES.items():
        if not may_import(snapshot, name):
            continue
        package, outcome = snapshot.package(name), find_failed_import(snapshot, module)
        if isinstance(package, Known) and outcome is not None and not _is_explained(snapshot, outcome):
            yield _describe(snapshot, package.value, outcome)


def _is_explained(snapshot: Snapshot, outcome: ImportOutcome) -> bool:
    if outcome.exception == "ModuleNotFoundError":
        return True
    failing = find_failing_package(snapshot, outcome)
    if failing in REPORTED_ELSEWHERE and may_import(snapshot, failing.replace("_", "-")):
        raise hidden_by(failing)
    return any(link.name and link.name in outcome.message for link in package_links(snapshot))


def _describe(snapshot: Snapshot, package: Distribution, outcome: ImportOutcome) -> Problem:
    error = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    culprit = find_failing_distribution(snapshot, outcome) or package
    blame = "" if culprit.name == package.name else f", in {culprit.name} {culprit.version}"
    command = f"{snapshot.host.executable} -c 'import {outcome.module}'"
    see = Fix("see the full traceback", "advice", command)
    is_changed = bool(culprit.files_missing or culprit.files_altered)
    return Problem(
        message=f"importing {outcome.module} of {package.name} {package.version} {outcome.outcome}{blame}",
        evidence=(f"import lane: {' '.join((error or outcome.outcome).split())}", *outcome.frames[-3:]),
        fixes=(
            *install.extend_import_timeout(outcome),
            install.reinstall_distribution(snapshot, culprit) if is_changed else see,
        ),
        subject=f"{package.name} {package.version}",
    )


RULE = Rule("ATN136", "error", check)

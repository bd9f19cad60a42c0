"""liger-kernel's patches cannot be imported.

What it checks: how importing `liger_kernel.transformers` with its patches ended in a child process. Failures that
other rules explain are reported by those rules: transformers too old (ATN150), triton missing (ATN152), a name that
transformers no longer has (ATN131), torch or transformers broken.

Why it matters: `use_liger_kernel=True` stops the job, or a framework continues without it.

What to do: install the missing package, install the liger-kernel for this transformers, or turn liger off. Installing
the same release again helps only if its own files are missing.

Source: the import lane's own observation.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install, required_triton
from attncheck.doctor.knowledge import liger
from attncheck.doctor.knowledge.transformers import entry_for_version
from attncheck.doctor.queries import (
    find_failing_package,
    is_missing_name,
    links,
    missing_module,
    require_dependencies,
    requirements,
)
from attncheck.doctor.rules import (
    Distribution,
    Fix,
    ImportOutcome,
    Known,
    MissingFact,
    Problem,
    Problems,
    Rule,
    Snapshot,
    need,
    only_if,
)
from attncheck.doctor.rules.transformers.liger_without_triton import TRITON_DISTRIBUTIONS

FAILED_OUTCOMES = ("raised", "died", "hung")
DEPENDENCIES = ("torch", "triton", "transformers", "peft")


@only_if(Snapshot.has, "liger-kernel")
def check(snapshot: Snapshot) -> Problems:
    outcome = need(snapshot.imported("liger_kernel.transformers"), "how importing liger_kernel ended")
    if outcome.outcome != "ok" and _is_reported_elsewhere(snapshot, outcome):
        raise MissingFact("a requirement of liger-kernel is missing", ("ATN150", "ATN152"))
    if is_missing_name(outcome) and any(
        link.consumer == "liger-kernel" and links.is_break(link) and links.broken_entries(snapshot, link)
        for link in links.package_links(snapshot)
    ):
        raise MissingFact("liger-kernel imports a name that no longer exists", ("ATN131",))
    require_dependencies(snapshot, outcome, DEPENDENCIES)
    if outcome.outcome not in FAILED_OUTCOMES:
        return
    package = need(snapshot.package("liger-kernel"), "liger-kernel")
    error = f"{outcome.exception}: {outcome.message}" if outcome.outcome == "raised" else outcome.signal
    yield Problem(
        message=f"importing liger_kernel.transformers {package.version} {outcome.outcome}",
        subject=f"liger-kernel {package.version}",
        evidence=(f"import lane: {error or outcome.outcome}", *outcome.frames[-3:]),
        fixes=(
            *install.extend_import_timeout(outcome),
            *_install_package(snapshot, outcome, package),
            Fix("do without it", "setting", "use_liger_kernel=False"),
        ),
    )


def _install_package(snapshot: Snapshot, outcome: ImportOutcome, package: Distribution) -> Iterator[Fix]:
    """Yield the install of the module that was not found, or else of the liger-kernel for this transformers."""
    module, transformers = missing_module(outcome), snapshot.version("transformers")
    if module.partition(".")[0] == "liger_kernel" or package.files_altered or package.files_missing:
        options = ("--no-deps", "--force-reinstall")
        yield install.install_packages(
            snapshot, f"liger-kernel=={package.version}", options=options, title="reinstall it: its files differ"
        )
    elif module:
        requirement = required_triton(snapshot) if module == "triton" else ""
        yield install.install_packages(snapshot, requirement or module.replace("_", "-"))
    elif isinstance(transformers, Known) and liger.choose_release(transformers.value) != package.version:
        release = liger.choose_release(transformers.value)
        yield install.install_packages(snapshot, f"liger-kernel=={release}", options=("--no-deps",))


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

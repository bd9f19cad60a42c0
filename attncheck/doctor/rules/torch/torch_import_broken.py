"""torch cannot be imported.

What it checks: how `import torch` ended in its own process: it raised, it died of a signal, or it did not end.

Why it matters: nothing else can work. Import errors of other packages are then only consequences, so other rules
about imports do not report them until this is fixed.

What to do: the finding names the library or symbol if the loader did. A library of another version on LD_LIBRARY_PATH
is the usual cause of an undefined symbol in torch's own libraries. A missing library comes from an interrupted
install, or from NVIDIA packages that were removed or replaced. Reinstalling torch with its dependencies fixes both.

Source: the message itself; pytorch/pytorch#111469 (`__nvJitLinkAddData` and LD_LIBRARY_PATH); torch/__init__.py of
torch 2.13.0 (`_load_global_deps`, `_preload_cuda_deps`).
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install, reinstall_torch
from attncheck.doctor.queries import (
    demangle_hint,
    describe_ending,
    describe_failed_import,
    find_failed_import,
    find_failing_distribution,
    parse_missing_library,
    parse_missing_symbol,
)
from attncheck.doctor.rules import Fix, ImportOutcome, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    outcome = find_failed_import(snapshot, "torch")
    if outcome is None or not isinstance(snapshot.package("torch"), Known):
        return
    version = snapshot.version("torch")
    name = f"torch {version.value}" if isinstance(version, Known) else "torch"
    yield Problem(
        message=f"{name} cannot be imported: {_describe_failure(outcome)}",
        subject=name,
        evidence=(describe_failed_import(outcome), *(f"at {frame}" for frame in outcome.frames[-2:])),
        fixes=tuple(_fixes(snapshot, outcome)),
    )


def _describe_failure(outcome: ImportOutcome) -> str:
    library, symbol = parse_missing_library(outcome.message), parse_missing_symbol(outcome.message)
    if library and outcome.outcome == "raised":
        return f"{library} is not found"
    if symbol and outcome.outcome == "raised":
        return f"a library that it loads lacks {demangle_hint(symbol)}"
    return describe_ending(outcome)


def _fixes(snapshot: Snapshot, outcome: ImportOutcome) -> Iterator[Fix]:
    yield from install.extend_import_timeout(outcome)
    if parse_missing_symbol(outcome.message) and "LD_LIBRARY_PATH" in snapshot.environ:
        yield install.unset_variable("LD_LIBRARY_PATH", title="let torch find its own libraries")
    culprit = find_failing_distribution(snapshot, outcome)
    if culprit is not None and culprit.name != "torch":
        yield install.reinstall_distribution(snapshot, culprit)
    yield reinstall_torch(snapshot)


RULE = Rule("ATN102", "error", check)

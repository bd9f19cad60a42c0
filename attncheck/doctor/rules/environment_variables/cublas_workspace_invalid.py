"""CUBLAS_WORKSPACE_CONFIG has a value that does not make cuBLAS deterministic.

What it checks: whether the value is a valid workspace description and, if other variables request determinism,
whether it is one of the two that torch accepts, `:4096:8` and `:16:8`.

Why it matters: with `torch.use_deterministic_algorithms(True)` the first matrix product on a GPU raises "Deterministic
behavior was enabled … CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8"; without it results differ silently from run to run.

What to do: set one of the two values before the process starts CUDA.

Source: torch.use_deterministic_algorithms documentation; NVIDIA cuBLAS documentation, "Results Reproducibility".
"""

import re

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import determinism
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

NAME = "CUBLAS_WORKSPACE_CONFIG"
ACCEPTED_VALUES = (":4096:8", ":16:8")  # the two values that torch accepts
WORKSPACE_PATTERN = re.compile(r"(:\d+:\d+)+")


def check(snapshot: Snapshot) -> Problems:
    value = snapshot.environ.get(NAME)
    if value is None or value in ACCEPTED_VALUES:
        return
    settings = determinism.determinism_settings(snapshot)
    well_formed = WORKSPACE_PATTERN.fullmatch(value) is not None
    if well_formed and not settings:
        return  # tuned for memory; nothing requests determinism
    reason = "is not deterministic" if well_formed else "is not a workspace description"
    yield Problem(
        message=f"{NAME}={value} {reason}; torch accepts {' and '.join(ACCEPTED_VALUES)}",
        subject=NAME,
        evidence=(f"{NAME}={value}", *settings),
        fixes=(install.export_variable(NAME, ACCEPTED_VALUES[0]),),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN702", "warning", check)

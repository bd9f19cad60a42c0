"""CUBLAS_WORKSPACE_CONFIG has a value under which cuBLAS is not deterministic.

What it checks: the value, where it is no workspace description at all, or where other variables ask for determinism
and it is neither of the two that torch accepts, `:4096:8` and `:16:8`.

Why it matters: with `torch.use_deterministic_algorithms(True)` the first matrix product on a GPU raises "Deterministic
behavior was enabled … CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8"; without it results differ silently from run to run.

What to do: set one of the two values before the process starts CUDA.

Source: torch.use_deterministic_algorithms documentation; NVIDIA cuBLAS documentation, "Results Reproducibility".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import determinism
from attncheck.doctor.rules import Rule

NAME = "CUBLAS_WORKSPACE_CONFIG"
ACCEPTED = (":4096:8", ":16:8")  # torch compares with these two
DESCRIPTION = re.compile(r"(:\d+:\d+)+")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where the value is malformed, or contradicts what else is asked for."""
    value = snapshot.environ.get(NAME)
    if value is None or value in ACCEPTED:
        return
    signs = determinism.signs(snapshot)
    well_formed = DESCRIPTION.fullmatch(value) is not None
    if well_formed and not signs:
        return  # tuned for memory, and nobody asks for determinism
    why = "is not deterministic" if well_formed else "is no workspace description"
    yield Problem(
        message=f"{NAME}={value} {why}; torch accepts {' and '.join(ACCEPTED)}",
        subject=NAME,
        evidence=(f"{NAME}={value}", *signs),
        fixes=(install.export(NAME, ACCEPTED[0]),),
    )


RULE = Rule("ATN702", "warning", check)

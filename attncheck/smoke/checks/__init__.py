"""The room of smoke's proofs: one file each, holding one frozen `PROVING`: a question asked of a plan by running it.

A file imports neither torch nor transformers at its top; what measures lies in `attncheck.smoke.worker` and is
imported when a worker proves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from attncheck.core import registry
from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult

if TYPE_CHECKING:
    from attncheck.smoke.worker.testbed import Bed


def nothing(plan: Plan, proof: CheckResult) -> Iterable[Change]:
    """Return that no change of the plan is known to help."""
    return ()


@dataclass(frozen=True)
class Proving:
    """One question: which rule's code a failure carries, when it is asked, how it is answered, what may mend it.

    `applies(plan)` returns "" or why the question does not arise. `prove(bed)` runs in a worker; it raises nothing
    that it can answer itself. `changes(plan, proof)` yields changes of the plan that may mend a failed proof, the most
    likely first. `message(proof)` is the finding's first line.
    """

    name: str
    title: str  # "packed documents do not see each other"
    code: str
    order: int  # of asking; what later ones rest on comes first
    applies: Callable[[Plan], str]
    prove: Callable[[Bed], CheckResult]
    message: Callable[[CheckResult], str]
    changes: Callable[[Plan, CheckResult], Iterable[Change]] = nothing


@cache
def load() -> tuple[dict[str, Proving], tuple[registry.Broken, ...]]:
    """Return the proofs that attncheck and its plugins bring, in order, by name, and what could not be loaded."""
    extensions, broken = registry.load(sys.modules[__name__], "attncheck.proving")
    records = [getattr(extension.module, "PROVING", None) for extension in extensions]
    known = sorted((record for record in records if isinstance(record, Proving)), key=lambda record: record.order)
    return {record.name: record for record in known}, tuple(broken)

"""Smoke's checks of a plan: frozen records, one `CHECK` per file, or `CHECKS` for a group of similar ones.

A file imports neither torch nor transformers. It names the function in `attncheck.smoke.worker` that runs the check,
which is imported only in a worker. Checks of a plugin (an entry point in the group "attncheck.proving" whose value is
the module) need one import:

from attncheck.smoke.checks import Change, CheckResult, Measure, Plan, SmokeCheck, deciding_reason
"""

import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from attncheck.core import registry
from attncheck.core.plan import Change, Plan
from attncheck.core.results.smoke import CheckResult, Measure, deciding_reason

Testbed = Any  # `attncheck.smoke.worker.testbed.Testbed`, which imports torch

__all__ = ["Change", "CheckResult", "Measure", "Plan", "SmokeCheck", "deciding_reason"]


def no_changes(plan: Plan, result: CheckResult) -> Iterable[Change]:
    """Return no changes, because no change of the plan is known to help."""
    return ()


@dataclass(frozen=True)
class SmokeCheck:
    """One check of a plan: when it applies, its function, the code of its failure, and possible fixes.

    `applies(plan)` returns "" or why the check does not apply. `worker` is the function that runs it, from a testbed to
    a result: the function itself, or "module:function", which is imported only in a worker. It raises nothing that it
    can report in the result. `changes(plan, result)` yields changes of the plan that may fix a failed check, the most
    likely first. `message(result)` is the finding's first line. With `names_errors` it is also used if the model raised
    or its process died while the feature was tested; otherwise such errors are a separate finding (ATN347).
    """

    name: str
    title: str  # "packed documents do not attend to each other"
    code: str
    order: int  # position in the order of runs; checks that later ones depend on come first
    applies: Callable[[Plan], str]
    worker: str | Callable[[Testbed], CheckResult]
    message: Callable[[CheckResult], str]
    changes: Callable[[Plan, CheckResult], Iterable[Change]] = no_changes
    names_errors: bool = False

    def run(self, testbed: Testbed) -> CheckResult:
        """Run the check in this process, which must be a worker, because its function imports torch."""
        function: Callable[[Testbed], CheckResult]
        function = pkgutil.resolve_name(self.worker) if isinstance(self.worker, str) else self.worker
        return function(testbed)


@cache
def load() -> tuple[dict[str, SmokeCheck], tuple[registry.Broken, ...]]:
    """Return the checks of attncheck and its plugins by name, in order, and the ones that could not be loaded.

    A plugin may still call its constant `PROVING`, the name before `CHECK`.
    """
    extensions, broken = registry.load(sys.modules[__name__], "attncheck.proving")
    records = [
        record for name in ("PROVING", "CHECK") for record in registry.list_records(extensions, name, SmokeCheck)
    ]
    known = sorted(records, key=lambda record: record.order)
    return {record.name: record for record in known}, tuple(broken)

"""The rules: one file each, named after the defect it finds, with one frozen `RULE`.

A rule depends only on a `Snapshot`: no torch, no file, no process. It yields `Problem`s; the engine adds code, name and
severity. A rule reads a required fact with `facts.need`, which turns a missing one into an explained skip. Above a
check, `only_if`, `about_model` and `about_job` name what it needs before it is called. The module's docstring is the
page that `attncheck explain CODE` prints. A defect that another command measures has only a page, a Markdown file whose
front matter holds its code and severity.

Folders group rules by subject and have no other meaning. One import provides everything that a rule needs. That
includes rules of plugins (an entry point in the group "attncheck.rules", whose value is the module):

    from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from attncheck.core.environment import Distribution, ImportOutcome
from attncheck.core.facts import Absent, Known, MissingFact, Unreadable, need, value_or
from attncheck.core.findings import Fix, Problem, Severity
from attncheck.core.job import Job
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.needs import Need
from attncheck.doctor.queries import requested_model, require_job

__all__ = [
    "Absent",
    "Distribution",
    "Fix",
    "ImportOutcome",
    "Job",
    "Known",
    "MissingFact",
    "Model",
    "Problem",
    "Problems",
    "Rule",
    "Snapshot",
    "Unreadable",
    "Version",
    "about_job",
    "about_model",
    "need",
    "only_if",
    "value_or",
]

Problems = Iterator[Problem]  # the return type of a check
Check = Callable[[Snapshot], Iterable[Problem]]


def only_if(condition: Callable[..., bool], *subjects: str) -> Callable[[Check], Check]:
    """Decorate a check that finds nothing unless `condition(snapshot, *subjects)` is true."""

    def decorate(check: Check) -> Check:
        return lambda snapshot: check(snapshot) if condition(snapshot, *subjects) else ()

    return decorate


def about_model(check: Callable[[Snapshot, Model], Iterable[Problem]]) -> Check:
    """Decorate a check that gets the requested model as well, and finds nothing without one."""

    def check_model(snapshot: Snapshot) -> Iterable[Problem]:
        model = requested_model(snapshot)
        return check(snapshot, model) if model is not None else ()

    return check_model


def about_job(check: Callable[[Snapshot, Job], Iterable[Problem]]) -> Check:
    """Decorate a check that gets the launch's job as well."""
    return lambda snapshot: check(snapshot, require_job(snapshot))


@dataclass(frozen=True)
class Rule:
    """One defect: its code, severity and check, and the needs for which it matters (none: always).

    `name` and `page` are filled in from the module's name and docstring when the rule is loaded. `by_engine` marks a
    rule that is only a page, because another command makes the finding. `unless` are needs for which another rule
    reports the same defect. `general` marks advice for an unknown job; if a launch is given, a rule about the launch is
    more exact.
    """

    code: str
    severity: Severity
    check: Check
    needs: frozenset[Need] = frozenset()
    by_engine: bool = False
    unless: frozenset[Need] = frozenset()
    general: bool = False
    name: str = ""
    page: str = ""

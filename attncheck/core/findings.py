"""Findings with their evidence and fixes, rules that could not be judged, and what a policy allows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from attncheck.core.launch import SourceLocation

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Fix:
    """One way to repair a finding, ready to paste; or, for the kind "advice", the next step if nothing here fixes it.

    - `kind`: what it changes. "command" runs in a shell, "env" sets an environment variable, "setting" is a framework
      flag or keyword, "edit" changes a file, "manual" cannot be pasted (a driver, a machine). "advice" changes nothing:
      it inspects further, or judges for another machine; reports show it as "next", not as "fix". Its `text` is a
      command, or empty if the title says everything.
    - `safety`: "safe" if nothing else in the environment can change, "unsafe" if other packages may.
    - `proven`: the measurement that showed it to work, if one was made.
    - `sets`: the settings of a launch that it changes, by `core.job.Key`; `text` is then filled in with the framework's
      own option names.
    - `installs`: the requirements that a command installs. `allows`: those that would fix the finding as well (empty:
      the same as `installs`).
    - `follows`: it belongs to the fix before it. Any other fix is an alternative to those before.
    """

    title: str
    kind: Literal["command", "env", "setting", "edit", "manual", "advice"]
    text: str
    safety: Literal["safe", "unsafe"] = "safe"
    proven: str = ""
    sets: Mapping[str, str] = field(default_factory=dict, hash=False)
    installs: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    follows: bool = False


@dataclass(frozen=True)
class Problem:
    """The result of a rule: the defect in one line, the observations, and how to repair it.

    `predicted` marks a defect that is inferred from versions, or whose source is weak. The engine then reports it one
    level less severe (an error as a warning), because nothing on this machine has confirmed it.
    """

    message: str
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    subject: str = ""  # what it is about: "flash-attn 2.8.3", "cuda:0", "gemma2"
    predicted: bool = False
    locations: tuple[SourceLocation, ...] = ()  # where in the user's sources the problem comes from


@dataclass(frozen=True)
class Finding:
    """A problem stamped with its rule's code, name and severity."""

    code: str
    name: str
    severity: Severity
    message: str
    subject: str
    evidence: tuple[str, ...]
    fixes: tuple[Fix, ...]
    locations: tuple[SourceLocation, ...] = ()
    check: str = ""  # the check of a gate that reported it: "doctor", "parity", …; "" outside a gate


@dataclass(frozen=True)
class Skip:
    """A rule that could not be judged, and why.

    `covered_by` are the codes of findings in the same report that must be fixed first.
    """

    code: str
    name: str
    reason: str
    covered_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowance:
    """Findings that a policy allows: a code or prefix, why, and until when (an ISO date, the last day included)."""

    code: str
    reason: str
    until: str


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of reports, by severity, then by code.

    Findings of the same code, subject and message are one finding: the most severe, with the locations of all.
    """
    merged: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.code)):
        merged.setdefault((finding.code, finding.subject, finding.message), []).append(finding)
    return tuple(equal[0] if len(equal) == 1 else _join_locations(equal) for equal in merged.values())


def _join_locations(findings: list[Finding]) -> Finding:
    locations = (location for finding in findings for location in finding.locations)
    return replace(findings[0], locations=tuple(dict.fromkeys(locations)))


def is_selected(code: str, select: Iterable[str], ignore: Iterable[str]) -> bool:
    """Return whether `select` (codes or prefixes such as "ATN1") selects a rule's code; `ignore` takes precedence."""
    chosen = tuple(select)
    return not code.startswith(tuple(ignore)) and (not chosen or code.startswith(chosen))

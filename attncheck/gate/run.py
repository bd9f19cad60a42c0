"""Runs the checks that a policy asks, in order and within a budget, and joins what they say in one report.

A check is left out where what came before makes its answer mean nothing, and where no time is left; whatever has been
answered by then is kept, also over Ctrl-C.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from attncheck.core.errors import CLEAN, FOUND, UNANSWERED, BadUsage, Interrupted, Unanswered
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Finding
from attncheck.core.launch import COMMAND, Source
from attncheck.core.plan import Plan
from attncheck.core.report import Report, merge
from attncheck.core.results.gate import CHECKS, Check, GateSection, Outcome, Stage
from attncheck.core.snapshot import NOT_ASKED, Snapshot
from attncheck.gate import apply, baseline, deadline
from attncheck.gate import checks as asking
from attncheck.gate.dates import today
from attncheck.gate.inputs import Inputs
from attncheck.gate.policy import Config
from attncheck.workers.execution import ExecutionTarget

DEFAULT: tuple[Check, ...] = ("doctor", "lint", "parity")
STATIC: tuple[Check, ...] = ("doctor", "lint")  # these judge; the others measure
INTERRUPTED = "interrupted"
LATE = "no time was left of the budget"
CUT = "the budget ended while it ran"
Say = Callable[[str], None]


def run(
    asked: Config,
    bench: ExecutionTarget,
    say: Say,
    sources: Sequence[Source] | None = None,
    inputs: Inputs | None = None,
    date: str = "",
) -> Report:
    """Return the report of the checks in `asked`. `sources` are what to lint, by itself the files that `asked` names.

    `inputs` remembers the files that were read. Raises `BadUsage` for a policy that cannot be asked.
    """
    sources = policy_sources(asked) if sources is None else sources
    check_policy(asked, bool(sources))
    return _Gate(asked, bench, say, sources, inputs or Inputs(sources), date or today()).run()


def policy_sources(asked: Config) -> tuple[Source, ...]:
    """Return the launch files that the policy names. Raises `BadUsage` for one that cannot be read."""
    if not asked.launch:
        return ()
    from attncheck.lint import launches

    if "-" in asked.launch:  # it may be the command's, which is not ours to read
        raise BadUsage("launch: '-' is standard input; name a file")
    return tuple(launches.read_source(path) for path in dict.fromkeys(asked.launch))


def check_policy(asked: Config, lintable: bool) -> None:
    """Raise `BadUsage` for what a gate cannot do: codes that no rule has, a launch to lint and none named."""
    apply.check(asked)
    if "lint" in asked.checks and not lintable:
        raise BadUsage(
            f"{asked.file + ': ' if asked.file else ''}lint is asked for, and `launch` names no file to lint"
        )
    if asked.min_efficiency and not asked.ring_size:
        raise BadUsage("min-efficiency is that of a ring: say ring-size too")
    if asked.target:
        from attncheck.doctor import target

        target.parse_target(asked.target)
    if asked.baseline:
        baseline.load(asked.baseline)


def checks(asked: Config, sources: Sequence[Source]) -> tuple[Check, ...]:
    """Return what to run: what the policy names, and lint of a command; else doctor, lint of what there is, parity.

    A target is another machine: nothing is measured for it unless the policy says so.
    """
    chosen = {*(asked.checks or (STATIC if asked.target else DEFAULT))}
    if any(source.name == COMMAND for source in sources):
        chosen.add("lint")
    return tuple(check for check in CHECKS if check in chosen and (check != "lint" or sources))


def exit_code(report: Report, asked: Config) -> int:
    """Return 1 for a finding that the policy fails on, else 3 for a check that gave no answer, else 0.

    A launch that no framework of ours reads is an answer where the policy does not ask for lint by name.
    """
    if report.fails(asked.fail_on):
        return FOUND
    questions = [question for section in report.sections.values() for question in section.unanswered]
    if any(question.reason == INTERRUPTED for question in questions):
        return Interrupted.exit_code
    if any(question.name in asked.checks or question.name != "lint" for question in questions):
        return UNANSWERED
    return CLEAN


def barrier(check: Check, asked: Config, snapshot: Snapshot, findings: tuple[Finding, ...], plan: Plan) -> str:
    """Return why `check` would mean nothing after all this, naming the finding; "" where it means something.

    doctor and lint judge, and are never stopped. Nothing can be measured where torch is missing or does not import,
    nor where the policy asks for a GPU and none is visible. smoke trains under the plan's own implementation: where
    that package does not import, or transformers does not, it would only say so again. No other finding stops
    anything, and none of lint's does: parity is a question about the machine.
    """
    if check in STATIC:
        return ""
    if isinstance(snapshot.torch, Absent) or _broken(snapshot, "torch"):
        return _named(findings, TORCH, "torch cannot be imported")
    if asked.device == "cuda" and _no_gpu(snapshot):
        return _named(findings, GPU, "the policy asks for a GPU, and none is visible here")
    if check == "smoke":
        if _broken(snapshot, "transformers"):
            return _named(findings, ("ATN154", "ATN155"), "transformers cannot be imported")
        if plan.attn_implementation == "flash_attention_2" and _broken(snapshot, "flash_attn"):
            return _named(findings, FLASH, "flash-attn cannot be imported, and the plan trains with it")
    return ""


TORCH = ("ATN101", "ATN102", "ATN103")
GPU = ("ATN205", "ATN213", "ATN203", "ATN202", "ATN204")
FLASH = ("ATN104", "ATN105", "ATN106", "ATN107", "ATN108")


def _named(findings: tuple[Finding, ...], codes: tuple[str, ...], otherwise: str) -> str:
    found = next((finding for code in codes for finding in findings if finding.code == code), None)
    return f"{found.code}: {found.message}" if found is not None else otherwise


def _broken(snapshot: Snapshot, module: str) -> bool:
    """Say whether importing a module was tried and failed."""
    found = snapshot.imported(module)
    return isinstance(found, Known) and found.value.outcome in ("raised", "died", "hung")


def _no_gpu(snapshot: Snapshot) -> bool:
    if isinstance(snapshot.devices, Absent) and snapshot.devices.reason == NOT_ASKED:
        return False
    return not isinstance(snapshot.devices, Known) or not snapshot.visible_devices()


class _Gate:
    """One run of a gate: what has been answered so far, and what is left to ask."""

    def __init__(
        self, asked: Config, bench: ExecutionTarget, say: Say, sources: Sequence[Source], inputs: Inputs, date: str
    ) -> None:
        self.asked, self.say, self.date = asked, say, date
        self.began = time.monotonic()
        self.ask = asking.Asking(asked, bench, say, sources, inputs)
        self.chosen = checks(asked, sources)
        self.reports: list[Report] = []
        self.stages: list[Stage] = []

    def run(self) -> Report:
        stopped = ""
        for check in self.chosen:
            rest = self._rest()
            because = stopped or (LATE if rest <= 0 else "") or self._barrier(check)
            if because:
                self.stages.append(Stage(check, "left out", 0.0, because))
            else:
                stopped = self._stage(check, rest)
        return self._report()

    def _rest(self) -> float:
        return self.asked.budget - (time.monotonic() - self.began) if self.asked.budget else float("inf")

    def _barrier(self, check: Check) -> str:
        found = tuple(finding for report in self.reports for finding in report.findings)
        if not self.ask.looked:
            return ""
        return barrier(check, self.asked, self.ask.snapshot(), found, self.ask.plan())

    def _stage(self, check: Check, rest: float) -> str:
        """Run one check; return why nothing can come after it, "" where it can."""
        began = time.monotonic()
        collected: list[Report] = []
        because, stopped = "", ""
        try:
            with deadline.deadline(rest + (deadline.GRACE if check == "parity" else 0.0)):
                for report in self.ask.reports(check, rest):
                    collected.append(report)
        except deadline.OutOfTime:
            because = CUT
        except KeyboardInterrupt:
            because = stopped = INTERRUPTED
        except Unanswered as error:
            because = str(error)
        except BadUsage as error:
            if not self.reports and not collected:
                raise
            because = str(error)
        self.reports += collected
        late = sum(report.device.not_reached for report in collected)
        because = because or (f"{late} case{'s' * (late != 1)} not reached within the budget" if late else "")
        outcome: Outcome = "unanswered" if because else "found" if self._finds(collected) else "clean"
        answers: Counter[str] = Counter(verdict.answer for report in collected for verdict in report.verdicts)
        self.stages.append(Stage(check, outcome, round(time.monotonic() - began, 3), because, answers))
        return stopped

    def _finds(self, collected: list[Report]) -> bool:
        """Say whether anything was found that the policy and the baseline do not let pass."""
        live = tuple(one for one in self.asked.allowances if one.until >= self.date)
        return any(self._settled(report, replace(self.asked, allowances=live)).findings for report in collected)

    def _settled(self, report: Report, asked: Config) -> Report:
        judged = apply.applied(report, asked, self.date)
        return baseline.applied(judged, asked.baseline) if asked.baseline else judged

    def _report(self) -> Report:
        own = Report("gate", self.ask.seen(), sections={"gate": GateSection(tuple(self.stages))})
        return self._settled(merge("gate", own.snapshot, (own, *self.reports)), self.asked)

"""Corrects fixes that install a newer transformers: it must know the launch's options, and help the program's model."""

import re
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.version import Version

from attncheck.core.findings import Finding, Fix
from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.lint.fields.names import read_lifetimes
from attncheck.lint.fields.releases import list_releases

AVERAGES = "ATN429"
UPPER_BOUND = re.compile(r",<[\d.]+$")
PLAIN_FORWARD = (
    "transformers 4.51.3 trainer.py:3797 divides by the tokens of the whole batch only if the model's forward takes"
    " **kwargs; {0} does not"
)
ADVICE = "do not accumulate; or let {0} take **kwargs, and divide its loss by num_items_in_batch"


def settle_installs(finding: Finding, launch: Launch, job: Job) -> Finding:
    """Return a finding whose fixes install only releases that have the launch's options and make a difference."""
    if finding.code == AVERAGES and launch.made.forwards:
        place = ", ".join(f"{forward.source}:{forward.line}" for forward in launch.made.forwards)
        fix = Fix("what to do", "manual", ADVICE.format(place))
        return replace(finding, evidence=(*finding.evidence, PLAIN_FORWARD.format(place)), fixes=(fix,))
    known = read_lifetimes("transformers", "TrainingArguments")
    names = {setting.name.lstrip("-").replace("-", "_") for setting in job.settings}
    last = min((Version(known[name][-1][1]) for name in names & known.keys()), default=None)
    newer = [release for release in list_releases("transformers") if last is not None and Version(release) > last]
    if not newer or not finding.fixes:
        return finding
    bound = ".".join(newer[0].split(".")[:2])
    return replace(finding, fixes=tuple(fix for item in finding.fixes if (fix := _limit(item, bound)) is not None))


def _limit(fix: Fix, bound: str) -> Fix | None:
    """Return a fix that installs a transformers below `bound`; None if it allows none."""
    for line in fix.installs:
        limited = UPPER_BOUND.sub(f",<{bound}", line)
        if not line.startswith("transformers>=") or limited == line or Version(bound) >= _find_bound(line):
            continue
        if not Requirement(limited).specifier.contains(UPPER_BOUND.sub("", line).partition(">=")[2]):
            return None
        installs = tuple(limited if item == line else item for item in fix.installs)
        fix = replace(
            fix, title=fix.title.replace(line, limited), text=fix.text.replace(line, limited), installs=installs
        )
    return fix


def _find_bound(line: str) -> Version:
    return Version(line.rpartition("<")[2])

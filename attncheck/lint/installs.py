"""Corrects the fix that installs a newer transformers: it must know the launch's options, and help its model."""

from dataclasses import replace

from packaging.version import Version

from attncheck.core.findings import Finding, Fix
from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.lint.fields.names import read_lifetimes
from attncheck.lint.fields.releases import list_releases

AVERAGES, BOUND = "ATN429", "<5"
PLAIN_FORWARD = (
    "transformers 4.51.3 trainer.py:3797 divides by the tokens of the whole batch only if the model's forward takes"
    " **kwargs; not so: {0}"
)


def settle_installs(finding: Finding, launch: Launch, job: Job) -> Finding:
    """Return a finding with the fix that its launch can take, if it is about the mean over micro-batches."""
    if finding.code != AVERAGES:
        return finding
    if launch.made.forwards:
        places = ", ".join(f"{forward.source}:{forward.line}" for forward in launch.made.forwards)
        text = f"do not accumulate; or let forward take **kwargs, and divide by num_items_in_batch: {places}"
        evidence = (*finding.evidence, PLAIN_FORWARD.format(places))
        return replace(finding, evidence=evidence, fixes=(Fix("what to do", "manual", text),))
    known = read_lifetimes("transformers", "TrainingArguments")
    names = known.keys() & {setting.name.lstrip("-").replace("-", "_") for setting in job.settings}
    last = min((Version(known[name][-1][1]) for name in names), default=Version("5"))
    releases = (release for release in list_releases("transformers") if last < Version(release) < Version("5"))
    newer = next(releases, "5.0")
    bound = "<" + ".".join(newer.split(".")[:2]).removesuffix(".0")
    return replace(finding, fixes=tuple(_limit(fix, bound) for fix in finding.fixes))


def _limit(fix: Fix, bound: str) -> Fix:
    installs = tuple(line.replace(BOUND, bound) for line in fix.installs)
    return replace(fix, title=fix.title.replace(BOUND, bound), text=fix.text.replace(BOUND, bound), installs=installs)

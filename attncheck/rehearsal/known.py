"""Doctor's knowledge about a fault that a rehearsal measured: the release or setting that causes it."""

from collections.abc import Mapping
from dataclasses import replace

from attncheck.core.facts import Known
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_job
from attncheck.lint.rewriting import ReadLaunch

# The rules whose findings explain a check's failure: errors of a model, of packing, of a trainer's mean.
CAUSES: Mapping[str, tuple[str, ...]] = {
    "documents": ("ATN310", "ATN350", "ATN357", "ATN401", "ATN409", "ATN410", "ATN444", "ATN450"),
    "loss": ("ATN352", "ATN429", "ATN444", "ATN457"),
    "gradients": ("ATN352", "ATN429", "ATN444", "ATN457"),
    "run": ("ATN404", "ATN408", "ATN411", "ATN441", "ATN452"),
}


def list_known_causes(read: ReadLaunch, check: str) -> tuple[str, ...]:
    """Return the rules' findings on the launch's job that explain a failed check, one line each.

    They read the launch as written, so an error of the scaled-down launch may have another cause.
    """
    codes = CAUSES.get(check, ())
    if not codes:
        return ()
    report = engine.run_rules(replace(read.snapshot, job=Known(read.job)), needs_of_job(read.job), codes)
    prefix = "the launch as written" if check == "run" else "known"
    return tuple(
        f"{prefix}: {finding.message} ({finding.code})" for finding in report.findings if finding.code in codes
    )

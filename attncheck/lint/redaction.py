"""Removes from a job what must not stand in a report: reports are shared, and launches hold keys and tokens."""

from __future__ import annotations

import re
from dataclasses import replace

from attncheck.core.job import Job
from attncheck.core.launch import Setting

SECRET_NAME = re.compile(r"(?i)(token|secret|passw|credential|api_?key|access_?key|wandb[._]?(key)?$|[._]key$)")
HIDDEN = "…"


def redact_job(job: Job) -> Job:
    """Return a job without the environment variables that decide nothing, and without the values of secrets."""
    from attncheck.doctor.probes.payload.environ import ALLOWED_VARIABLES

    environ = tuple((name, value) for name, value in job.plan.environ if name in ALLOWED_VARIABLES)
    return replace(job, plan=replace(job.plan, environ=environ), settings=tuple(map(_redact_setting, job.settings)))


def _redact_setting(setting: Setting) -> Setting:
    return replace(setting, value=HIDDEN) if setting.value and SECRET_NAME.search(setting.name) else setting

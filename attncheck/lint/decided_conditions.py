"""Adds the errors and warnings of the framework's own source that a launch's settings certainly reach.

The source is the one that will run: next to the launch, or installed in the examined environment.
"""

import re
from collections.abc import Mapping

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Setting
from attncheck.core.records import replace
from attncheck.lint.programs.conditions import find_outcomes, follow_program
from attncheck.lint.programs.interpreter import Outcome
from attncheck.lint.programs.records import Origin

MAX_TEXT = 300  # characters of an exception's text


def add_decided_conditions(job: Job, launch: Launch, script: Origin | None) -> Job:
    """Return the job with the errors that its program raises as problems, and with the warnings that it logs.

    `script` is the source of a program that has no parser.
    """
    written = _collect_written(job, launch)
    if launch.open_ends:  # what was not read may set anything
        return job
    if launch.program is not None:
        outcomes = find_outcomes(launch.program, written, launch.environ)
    else:
        outcomes = follow_program(script, [], launch.environ) if script is not None else []
    errors = [outcome for outcome in outcomes if outcome.kind == "raises"]
    problems, new = list(job.problems), []
    for outcome in errors:
        known = next((number for number, problem in enumerate(problems) if _is_same(problem, outcome, written)), None)
        if known is None:
            new.append(_make_problem(outcome, job, written))
        else:
            evidence = (*problems[known].evidence, _describe(outcome))
            problems[known] = replace(problems[known], evidence=evidence, mild=False)
    warnings = dict.fromkeys(_describe(outcome) for outcome in outcomes if outcome.kind == "warns")
    return replace(job, problems=(*problems, *new), warnings=tuple(warnings))


def _collect_written(job: Job, launch: Launch) -> dict[str, Setting]:
    """Return the settings by bare name; the last one counts."""
    return {setting.name.lstrip("-+~").replace("-", "_"): setting for setting in (*launch.entries, *job.settings)}


def _make_problem(outcome: Outcome, job: Job, written: Mapping[str, Setting]) -> SettingProblem:
    locations = [setting.location for setting in _list_named(outcome, written)]
    return SettingProblem(
        "refuses",
        f"{job.framework} refuses these settings: {outcome.text[:MAX_TEXT]}",
        (f"{outcome.place} raises it for {_list_values(outcome, written)}",),
        locations[0] if locations else job.location,
        advice="change the settings as the message says",
    )


def _describe(outcome: Outcome) -> str:
    verb = "raises" if outcome.kind == "raises" else "warns"
    return f"{outcome.place} {verb}: {outcome.text[:MAX_TEXT]}"


def _list_named(outcome: Outcome, written: Mapping[str, Setting]) -> list[Setting]:
    """Return the launch's settings that the conditions before an outcome name."""
    bare = {name.rpartition(".")[2]: setting for name, setting in written.items()} | dict(written)
    return [bare[name] for name in reversed(outcome.names) if name in bare]


def _list_values(outcome: Outcome, written: Mapping[str, Setting]) -> str:
    settings = _list_named(outcome, written)
    values = (f"{setting.name}={setting.value}" if setting.value else setting.name for setting in settings)
    return ", ".join(dict.fromkeys(values)) or "settings that the launch does not set"


def _is_same(problem: SettingProblem, outcome: Outcome, written: Mapping[str, Setting]) -> bool:
    """Return whether a known problem is about the settings that an outcome depends on."""
    words = set(re.findall(r"\w+", problem.message))
    return problem.consequence == "refuses" and any(
        setting.location == problem.location or name in words
        for setting in _list_named(outcome, written)
        for name in [setting.name.lstrip("-+~").rpartition(".")[2].replace("-", "_")]
    )

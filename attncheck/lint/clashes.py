"""Settings that are fine alone and fail together: the table clashes.toml, put to a launch of any framework.

A row says in which releases of which package it holds, `when` it does, what then happens, and where that was read. Each
name in `when` is a fact of `_collect_facts` or the framework's own name of a setting; its value is a pattern that must
match all of what the launch has there, or ">N". What the launch does not set is "".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.requirements import Requirement

from attncheck.core.facts import Known
from attncheck.core.io.toml import parse_toml
from attncheck.core.job import Consequence, Job, SettingProblem
from attncheck.core.launch import Launch, Setting
from attncheck.core.snapshot import Snapshot
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.fields.constraints import Constraint
from attncheck.lint.fields.written import TRUE_WORDS

STAGE = re.compile(r"zero(?:_stage)?[-_]?([0-3])", re.IGNORECASE)  # "zero3", "zero_3.json"; "ds_z3.json" is not read


@dataclass(frozen=True)
class Clash:
    """One row of the table."""

    framework: str  # a pattern: "trl|transformers"
    since: str  # of the package
    when: Mapping[str, str]
    consequence: Consequence
    message: str
    source: str
    package: str = ""  # "": the framework's own
    until: str = ""
    needs: Sequence[str] = ()  # requirements that must hold as well: "liger-kernel>=0.6.3"
    sets: Mapping[str, str] = field(default_factory=dict)
    installs: Sequence[str] = ()
    advice: str = ""
    mild: bool = False


@cache
def load_clashes() -> tuple[Clash, ...]:
    """Return the rows of the table."""
    text = files(__package__).joinpath("clashes.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = parse_toml(text, "clashes.toml")["clash"]
    return tuple(Clash(**row) for row in rows)


def add_clashes(job: Job, launch: Launch, snapshot: Snapshot) -> Job:
    """Return the job with the problems of its settings that fail together."""
    candidates = [clash for clash in load_clashes() if re.fullmatch(clash.framework, job.framework)]
    written = _collect_written(job, launch) if candidates else {}
    facts = _collect_facts(job, launch, written) if candidates else {}
    problems = (_make_problem(clash, job, snapshot, written, facts) for clash in candidates)
    return replace(job, problems=(*job.problems, *(problem for problem in problems if problem is not None)))


def _make_problem(
    clash: Clash, job: Job, snapshot: Snapshot, written: Mapping[str, Setting], facts: Mapping[str, str]
) -> SettingProblem | None:
    """Return the problem of one row, None if it does not hold of this job."""
    version = _find_version(clash.package, snapshot) if clash.package else job.version
    constraint = Constraint(clash.source, clash.since, clash.until)
    values = {names: _find_value(names, written, facts) for names in clash.when}
    if not version or not constraint.holds_in(version) or not all(_holds(need, snapshot) for need in clash.needs):
        return None
    if not all(_matches(pattern, values[name]) for name, pattern in clash.when.items()):
        return None
    names = [name for choice in clash.when for name in choice.split("|")]
    location = next((written[name].location for name in names if name in written), job.location)
    message = clash.message.format(**facts)
    installs = tuple(clash.installs) or ((f"{clash.package or job.framework}>={clash.until}",) if clash.until else ())
    return SettingProblem(
        clash.consequence, message, (constraint.evidence,), location, clash.sets, clash.advice,
        () if clash.sets else installs, clash.mild,
    )  # fmt: skip


def _find_value(names: str, written: Mapping[str, Setting], facts: Mapping[str, str]) -> str:
    """Return what the launch has under the first of "one|other" that it has."""
    values = (facts[name] if name in facts else _read_value(written.get(name)) for name in names.split("|"))
    return next((value for value in values if value), "")


def _matches(pattern: str, value: str) -> bool:
    if pattern.startswith(">"):
        return value.isdecimal() and int(value[:9]) > int(pattern[1:])
    return re.fullmatch(pattern, value) is not None


def _holds(need: str, snapshot: Snapshot) -> bool:
    requirement = Requirement(need)
    version = _find_version(requirement.name, snapshot)
    return bool(version) and requirement.specifier.contains(version, prereleases=True)


def _find_version(name: str, snapshot: Snapshot) -> str:
    found = snapshot.package(name)
    return found.value.version if isinstance(found, Known) else ""


def _collect_written(job: Job, launch: Launch) -> dict[str, Setting]:
    """Return what the launch sets for the program and its launcher, under bare names; the last counts."""
    options = iter_option_values(launch.launcher_words)
    launcher = [Setting(name, word.text, word.location, word.span, known=word.known) for name, word in options]
    everything = (*launch.launcher_entries, *launcher, *launch.entries, *job.settings)
    return {setting.name.lstrip("-+~").replace("-", "_"): setting for setting in everything}


def _read_value(setting: Setting | None) -> str:
    """Return the value in lower case, "true" for what means that and for a switch, "" for what is not known."""
    if setting is None or not setting.known:
        return ""
    text = setting.value.strip("\"'").lower()
    return "true" if text in TRUE_WORDS - {"1"} or (not text and setting.name.startswith("--")) else text


def _collect_facts(job: Job, launch: Launch, written: Mapping[str, Setting]) -> dict[str, str]:
    """Return what a row may ask of the job besides its settings."""
    return {
        "trainer": job.trainer,
        "accumulation": str(job.plan.accumulation),
        "ranks": str(job.world_size.value) if isinstance(job.world_size, Known) else "",
        "zero": _find_zero_stage(launch, written),
        "fsdp": _find_fsdp_version(written),
    }


def _find_zero_stage(launch: Launch, written: Mapping[str, Setting]) -> str:
    """Return DeepSpeed's stage by its own file, accelerate's, an option or a name like "zero3"; "" if unknown."""
    of_file = (entry.value for entry in launch.deepspeed if entry.name == "zero_optimization.stage")
    names = ("zero_stage", "deepspeed_config.zero_stage")
    stages = [*of_file, *(_read_value(written.get(name)) for name in names)]
    for name in ("deepspeed", "accelerate_config", "config_file"):
        match = STAGE.search(_read_value(written.get(name)).rsplit("/", 1)[-1])
        stages += [match[1]] if match else []
    return next((stage for stage in stages if stage), "")


def _find_fsdp_version(written: Mapping[str, Setting]) -> str:
    """Return "1" or "2" if accelerate is told to use FSDP, "" if it is not or nobody says."""
    entry = _read_value(written.get("distributed_type")) == "fsdp"
    if not (entry or "use_fsdp" in written or _read_value(written.get("fsdp"))):
        return ""
    names = ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")
    return next((value for value in (_read_value(written.get(name)) for name in names) if value), "1")

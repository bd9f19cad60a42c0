"""Checks a launch of any framework against doctor's table of settings that work separately but fail together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from packaging.requirements import Requirement

from attncheck.core.facts import Known
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Setting
from attncheck.core.records import replace
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.clashes import Clash, load_clashes
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.fields.constraints import Constraint
from attncheck.lint.fields.written import TRUE_WORDS
from attncheck.lint.programs.trainers import OWN_LOSS

# Before, use_liger_kernel patches the model alone, and use_liger_loss is the loss: trl 0.24.0, 0.25.0 grpo_trainer.py.
KERNEL_IS_LOSS = Constraint("trl 0.25.0 trainer/grpo_trainer.py:397", since="0.25")
PRESET = re.compile(r"zero([0-3])(_offload)?")  # ms-swift's own files, and those shipped with TRL


def add_clashes(job: Job, launch: Launch, snapshot: Snapshot, read_others: Callable[[], Iterable[Job]] = tuple) -> Job:
    """Return the job with the problems of settings that fail together, in each release that may run."""
    candidates = _list_candidates(job.framework)
    problems = _find_problems(candidates, job, launch, snapshot) if candidates else []
    for other in read_others() if problems else ():
        messages = {problem.message for problem in _find_problems(candidates, other, launch, snapshot)}
        problems = [problem for problem in problems if problem.message in messages]
    return replace(job, problems=(*job.problems, *problems))


@cache
def _list_candidates(framework: str) -> tuple[Clash, ...]:
    return tuple(clash for clash in load_clashes() if re.fullmatch(clash.framework, framework))


def _find_problems(candidates: Sequence[Clash], job: Job, launch: Launch, snapshot: Snapshot) -> list[SettingProblem]:
    """Return the problems of the table's rows that apply to a job."""
    written = _collect_written(job, launch)
    facts = _collect_facts(job, launch, written)
    problems = (_make_problem(clash, job, snapshot, written, facts) for clash in candidates)
    return [problem for problem in problems if problem is not None]


def _make_problem(
    clash: Clash, job: Job, snapshot: Snapshot, written: Mapping[str, Setting], facts: Mapping[str, str]
) -> SettingProblem | None:
    """Return the problem of one row; None if it does not apply to this job."""
    if not all(_matches(pattern, _find_value(names, written, facts)) for names, pattern in clash.when.items()):
        return None
    version = _find_version(clash.package, snapshot, job.requires) if clash.package else job.version
    constraint = Constraint(clash.source, clash.since, clash.until)
    measured = clash.find_measured(snapshot)
    is_listed = bool(version) and constraint.holds_in(version)
    if not (measured.loses_gradients if measured else is_listed) or not all(
        _holds(need, snapshot) for need in clash.needs
    ):
        return None
    names = [name for choice in clash.when for name in choice.split("|")]
    location = next((written[name].location for name in names if name in written), job.location)
    installs = (f"{clash.package or job.framework}>={clash.until}",) if clash.until and is_listed else ()
    evidence = (measured.evidence, clash.source) if measured else (constraint.evidence,)
    return SettingProblem(
        clash.consequence, clash.message.format(**facts), evidence, location, clash.sets,
        clash.advice or ("use ZeRO-1" if not is_listed else ""),
        () if clash.sets else installs, clash.mild,
    )  # fmt: skip


def _find_value(names: str, written: Mapping[str, Setting], facts: Mapping[str, str]) -> str:
    """Return the launch's value for the first of the names "one|other" that it has."""
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


def _find_version(name: str, snapshot: Snapshot, requires: Sequence[str] = ()) -> str:
    """Return the installed version of a package, or else the one that the framework's release pins; "" if unknown."""
    package = snapshot.package(name)
    pins = (re.fullmatch(rf"{name}==([\w.]+)", requirement.replace(" ", "")) for requirement in requires)
    return package.value.version if isinstance(package, Known) else next((pin[1] for pin in pins if pin), "")


def _collect_written(job: Job, launch: Launch) -> dict[str, Setting]:
    """Return the settings for the program and its launcher, by bare name; the last one counts."""
    options = iter_option_values(launch.launcher_words)
    launcher = [Setting(name, word.text, word.location, word.span, known=word.known) for name, word in options]
    everything = (*launch.deepspeed, *launch.launcher_entries, *launcher, *launch.entries, *job.settings)
    return {setting.name.lstrip("-+~").replace("-", "_"): setting for setting in everything}


def _read_value(setting: Setting | None) -> str:
    """Return the value in lower case; "true" for its synonyms and for a switch, "" if unknown."""
    if setting is None or not setting.known:
        return ""
    text = setting.value.strip("\"'").lower()
    return "true" if text in TRUE_WORDS - {"1"} or (not text and setting.name.startswith("--")) else text


def _collect_facts(job: Job, launch: Launch, written: Mapping[str, Setting]) -> dict[str, str]:
    """Return the facts of the job, besides its settings, that a row may use."""
    steps = _read_value(written.get("steps_per_generation"))
    is_no_loss = job.framework == "trl" and job.trainer in ("grpo", "dpo", "kto")
    return {
        **({"use_liger_kernel": ""} if is_no_loss and not KERNEL_IS_LOSS.holds_in(job.version) else {}),
        "trainer": "" if OWN_LOSS in (launch.trainers or ()) else job.trainer,  # which is then the program's own
        "precision": job.plan.precision,
        "accumulation": str(job.plan.accumulation),
        "tensor_parallel": str(job.tensor_parallel),
        "ranks": str(job.world_size.value) if isinstance(job.world_size, Known) else "",
        "zero": _find_zero_stage(written),
        "offload": _find_offload(written),
        "fsdp": _find_fsdp_version(written),
        # whether completions are generated for another number of micro-batches than an optimizer step takes
        "uneven_generation": "true" if steps.isdecimal() and int(steps[:9]) != job.plan.accumulation else "",
    }


def _find_zero_stage(written: Mapping[str, Setting]) -> str:
    """Return DeepSpeed's stage from its own file, accelerate's, an option or a name like "zero3"; "" if unknown."""
    stage = _find_value("zero_optimization.stage|zero_stage|deepspeed_config.zero_stage", written, {})
    preset = PRESET.fullmatch(_find_value("deepspeed|accelerate_config", written, {}))
    return stage or (preset[1] if preset else "")


def _find_offload(written: Mapping[str, Setting]) -> str:
    """Return where DeepSpeed stores the optimizer's states, "cpu" or "nvme"; "" for the GPU or if unknown."""
    name = "offload_optimizer_device"
    device = _find_value(f"zero_optimization.offload_optimizer.device|{name}|deepspeed_config.{name}", written, {})
    preset = PRESET.fullmatch(_find_value("deepspeed|accelerate_config", written, {}))
    is_offloaded = bool(preset and preset[2]) or _find_value("adam_offload", written, {}) == "true"
    return "cpu" if is_offloaded else device.replace("none", "")


def _find_fsdp_version(written: Mapping[str, Setting]) -> str:
    """Return "1" or "2" if the launch uses FSDP; otherwise ""."""
    is_in_file = _read_value(written.get("distributed_type")) == "fsdp"
    if not (is_in_file or "use_fsdp" in written or _read_value(written.get("fsdp"))):
        return ""
    return _find_value("fsdp_version|fsdp_config.fsdp_version|fsdp_config.version", written, {}) or "1"

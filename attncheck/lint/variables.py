"""Finds where a launch sets the variables of a job, and builds the environment that the rules judge.

Only variables set by a script or a file are known. The variables of the shell that will start the script are unknown,
and those of the shell that runs attncheck are not evidence of them. A command typed after `--` runs in this very shell,
so its own variables override the shell's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from attncheck.core.facts import Known
from attncheck.core.findings import Fix
from attncheck.core.job import Job
from attncheck.core.launch import NOWHERE, Launch, Setting, Source, Word
from attncheck.core.records import replace
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries.gpus import VISIBLE_DEVICES

CLUSTER = re.compile(r"\bray\s+(?:start|up|job)\b|RAY_ADDRESS")
UNKNOWN_SHELL = "the launch does not set it, and the shell that will start it is not known"
VALUE = r"""(?:\\?"(?:[^"\\\n]|\\[^"])*\\?"|'[^'\n]*'|[^\s,}"']+)"""  # value of a JSON key, perhaps with escaped quotes


def locate_words(source: Source, environ: Mapping[str, str], words: Sequence[Word]) -> dict[str, Setting]:
    """Return the variables that a launcher reads from `words` (`env A=1`, `-x A=1`, JSON), each with its place."""
    variables: dict[str, Setting] = {}
    for name, value in environ.items():
        pattern = re.compile(rf"\b{re.escape(name)}\b")
        word = next((word for word in words if pattern.search(word.text)), None)
        if word is None:
            variables[name] = Setting(name, value, words[0].location, NOWHERE)
            continue
        is_known = word.known or not re.search(r"[$`]", value)
        variables[name] = Setting(name, value, word.location, _find_span(source.text, word, name), known=is_known)
        if variables[name].span != NOWHERE:
            variables[name] = replace(variables[name], location=source.location(variables[name].span[0]))
    return variables


def _find_span(text: str, word: Word, name: str) -> tuple[int, int]:
    """Return the span of `NAME=value` or `"NAME": value` inside the word's place in the text."""
    if word.span == NOWHERE:
        return NOWHERE
    key = re.escape(name)
    assignment = re.compile(rf"\b{key}=(?:[^\s,'\"]+|\"[^\"]*\"|'[^']*')?")
    entry = re.compile(rf"""\\?["']{key}\\?["']\s*:\s*{VALUE}""")
    match = assignment.search(text, *word.span) or entry.search(text, *word.span)
    return match.span() if match else NOWHERE


def with_variables(job: Job, launch: Launch) -> Job:
    """Return the job with the variables that affect a rule, each with its place; reports show no others."""
    from attncheck.doctor.probes.payload.environ import ALLOWED_VARIABLES

    variables = {variable.name: variable for variable in launch.variables if variable.name in ALLOWED_VARIABLES}
    environ = tuple((name, value) for name, value in job.plan.environ if name in ALLOWED_VARIABLES)
    for name, value in environ:
        if name not in variables or variables[name].value != value:
            entry = _find_entry((*job.settings, *launch.entries), name, value)
            variables[name] = entry or Setting(name, value, job.location, NOWHERE, known=not re.search(r"[$`]", value))
    return replace(job, plan=replace(job.plan, environ=environ), variables=tuple(variables.values()))


def _find_entry(settings: Iterable[Setting], name: str, value: str) -> Setting | None:
    """Return the key of a file, or the override, that sets a variable: "env.NAME", "….env_vars.NAME"."""
    for setting in settings:
        if setting.name.rsplit(".", 1)[-1] == name and setting.value.strip("\"'") == value:
            return replace(setting, name=name, value=value)
    return None


def place_fix(fix: Fix, job: Job) -> Fix:
    """Return a fix of variables with the place where the launch sets them, which overrides the shell's own."""
    match = re.fullmatch(r"(unset|export) ([A-Za-z_][\w ]*)(=.*)?", fix.text, re.DOTALL)
    if fix.kind != "env" or match is None:
        return fix
    places = [variable for variable in job.variables if variable.name in match[2].split() and variable.known]
    if not places:
        return fix
    where = ", ".join(str(variable.location) for variable in places)
    removals = "\n".join(f"# without {variable.name}={variable.value}" for variable in places)
    text = fix.text if match[1] == "export" else removals
    return replace(fix, kind="edit", title=f"{fix.title}, in {where}", text=text)


def set_environment(snapshot: Snapshot, launch: Launch, job: Job) -> Snapshot:
    """Return the snapshot with the environment that a launch sets for its job."""
    is_typed = launch.source.kind == "command"
    environ = dict(snapshot.environ) if is_typed else {}
    unknown = not is_typed
    for variable in job.variables:
        if variable.known:
            environ[variable.name] = variable.value
        else:
            environ.pop(variable.name, None)
            unknown = True
    if _gives_gpus(launch, job):
        environ.pop(VISIBLE_DEVICES, None)
    elif not is_typed or VISIBLE_DEVICES in launch.environ:
        snapshot = _show_gpus(snapshot, environ.get(VISIBLE_DEVICES))
    return replace(snapshot, environ=environ, environ_gap=UNKNOWN_SHELL if unknown else "")


def _gives_gpus(launch: Launch, job: Job) -> bool:
    """Return whether the launcher or Ray assigns GPUs to each process and so overrides CUDA_VISIBLE_DEVICES.

    verl starts Ray itself on one node if no cluster was started, and that Ray has only the visible GPUs.
    """
    starts_ray = job.framework == "verl" and job.nodes == 1 and not CLUSTER.search(launch.source.text)
    is_rays = job.reinforcement and (job.framework == "openrlhf" or (job.framework == "verl" and not starts_ray))
    return is_rays or not {"ray", "deepspeed"}.isdisjoint(launch.launchers)


def _show_gpus(snapshot: Snapshot, setting: str | None) -> Snapshot:
    """Return the snapshot with the GPUs that CUDA_VISIBLE_DEVICES leaves visible; all of them if it is unknown.

    CUDA stops at the first entry that names no GPU; a repeated one, or an empty value, hides all (see ATN213).
    """
    if not isinstance(snapshot.devices, Known):
        return snapshot
    devices = snapshot.devices.value
    entries = [entry.strip() for entry in setting.split(",")] if setting else []
    if setting is None or not all(re.fullmatch(r"-?\d{1,4}", entry) for entry in entries):
        visible = {device.index for device in devices}
    else:
        numbers = [int(entry) for entry in entries]
        first_wrong = next((i for i, number in enumerate(numbers) if not 0 <= number < len(devices)), len(numbers))
        visible = set() if len(set(numbers)) < len(numbers) else set(numbers[:first_wrong])
    if all(device.visible == (device.index in visible) for device in devices):
        return snapshot
    return replace(
        snapshot, devices=Known(tuple(replace(device, visible=device.index in visible) for device in devices))
    )

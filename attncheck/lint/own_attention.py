"""Judges a launch whose program registers its own attention function, or loads its model with a fixed one.

The program's source is read, and never run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import FixedSetting, Launch, Setting, Source, SourceLocation
from attncheck.doctor.probes.payload.model.registered_attention import find_unmasked_attentions
from attncheck.lint.programs.fixed_arguments import MODEL_ARGUMENTS, find_model_arguments, find_place_without
from attncheck.lint.programs.modules import SourceTree
from attncheck.lint.programs.places import find_program
from attncheck.lint.programs.program import Entry, find_entry

NO_MASK = (
    "transformers 5.23.0 masking_utils.py, _preprocess_mask_arguments: an implementation that is not in"
    " ALL_MASK_ATTENTION_FUNCTIONS gets attention_mask=None"
)
ADVICE = 'transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("{0}", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])'


def add_own_attention(job: Job, launch: Launch, read_file: Callable[[str], Source | None]) -> Job:
    """Return the job with a problem if its script registers the requested attention without a mask function."""
    name = job.plan.attn_implementation
    program = launch.words[0].text if launch.words else ""
    if not name or not program.endswith(".py"):
        return job
    source = read_file(program)
    line = find_unmasked_attentions(source.text).get(name) if source is not None else None
    if source is None or line is None:
        return job
    problem = SettingProblem(
        "wrong",
        f"{program} registers the attention {name!r} without a mask function, so padding and other "
        "documents are attended to",
        (NO_MASK,),
        SourceLocation(source.name, line),
        advice=ADVICE.format(name),
    )
    return replace(job, problems=(*job.problems, problem))


def add_fixed_arguments(job: Job, launch: Launch) -> Job:
    """Return the job with the settings that its program ignores, because its source has a fixed value instead."""
    fixed_settings = {setting.name: setting for setting in launch.fixed if not setting.is_read}
    for setting in dict.fromkeys((*job.settings, *launch.entries)):
        name = setting.name.lstrip("+-").rpartition(".")[2].replace("-", "_")
        is_unknown = setting.location in {unknown.location for unknown in job.unknown_settings}
        if is_unknown or not setting.known or setting in launch.fixed:
            continue
        own, place = _find_model_argument(launch, name) if name in MODEL_ARGUMENTS else (None, None)
        argument = fixed_settings.get(name) or own
        written = f"{setting.name.lstrip('-')}={setting.value}"
        if argument is None and place is not None:
            text = f"{written} is ignored: the program loads its model without {name}"
            evidence = f"{place.source}:{place.line} does not pass it, and nothing in the program reads it"
            job = _add_ignored(job, setting, name, "", text, evidence, f"pass it in {place.source}:{place.line}")
        if (
            argument is None
            or not argument.known
            or argument.value.casefold() == (setting.value.strip("\"'") or "true").casefold()
        ):
            continue
        source, verb = argument.location.source, "loads its model with" if name in MODEL_ARGUMENTS else "passes"
        text = f"{written} is ignored: the program {verb} {name}={argument.value}"
        evidence = f"{source}:{argument.location.line} has that value, and the program does not read {name}"
        job = _add_ignored(job, setting, name, argument.value, text, evidence, f"change it in {source}")
    return job


def _add_ignored(job: Job, setting: Setting, name: str, value: str, text: str, evidence: str, advice: str) -> Job:
    """Return the job with the problem that its program ignores a setting, and with the attention that it has."""
    problem = SettingProblem("ignores", text, (evidence,), setting.location, advice=advice)
    plan = replace(job.plan, attn_implementation=value) if name == "attn_implementation" else job.plan
    return replace(job, plan=plan, problems=(*job.problems, problem))


def _find_model_argument(launch: Launch, name: str) -> tuple[FixedSetting | None, SourceLocation | None]:
    """Return the value that a program loads its model with, or where it certainly loads the model without any."""
    program = launch.words[0].text if launch.words else ""
    is_module = any(word.text in ("-m", "--module") for word in launch.launcher_words)
    place = find_program(launch, Entry(program), ()) if is_module or "." in program else None
    return _read_model_argument(place[0], place[1].folders, place[1].base, name) if place is not None else (None, None)


@lru_cache(maxsize=512)
def _read_model_argument(
    entry: Entry, folders: tuple[Path, ...], base: Path, name: str
) -> tuple[FixedSetting | None, SourceLocation | None]:
    tree = SourceTree(folders, base)
    main = find_entry(entry, tree)
    if main is None:
        return None, None
    return next(find_model_arguments(tree, main, (name,)), None), find_place_without(tree, main, name)

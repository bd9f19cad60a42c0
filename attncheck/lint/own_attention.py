"""Judges a launch whose program registers its own attention function, or loads its model with a fixed one.

The program's source is read, and never run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import FixedSetting, Launch, Source, SourceLocation
from attncheck.doctor.probes.payload.model.registered_attention import find_unmasked_attentions
from attncheck.lint.programs.fixed_arguments import MODEL_ARGUMENTS, find_model_arguments, find_unpassed
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
    ignored = [problem.location for problem in job.problems if problem.consequence == "ignores"]
    judged = {*ignored, *(item.location for item in job.unknown_settings)}
    names = {*fixed_settings, *MODEL_ARGUMENTS}
    all_settings = (*job.settings, *launch.entries)
    ending = [(setting.name.lstrip("+-").rpartition(".")[2].replace("-", "_"), setting) for setting in all_settings]
    sections = Counter(name for name, _ in {(name, setting.name) for name, setting in ending if "." in setting.name})
    for name, setting in dict.fromkeys(pair for pair in ending if pair[0] in names):
        if setting.location in judged or not setting.known or setting in launch.fixed or sections[name] > 1:
            continue  # which of several sections the program means is not known
        argument = fixed_settings.get(name) or (_find_model_argument(launch, name) if name in MODEL_ARGUMENTS else None)
        if (
            argument is None
            or not argument.known
            or setting.location.source.endswith(argument.location.source)  # the program sets it itself
            or argument.value.casefold() == (setting.value.strip("\"'") or "true").casefold()
        ):
            continue
        written, source = f"{setting.name.lstrip('-')}={setting.value}", argument.location.source
        verb = "loads its model with" if name in MODEL_ARGUMENTS else "passes"
        passed = f"{verb} {name}={argument.value}" if argument.value else f"loads its model without {name}"
        has = "has that value" if argument.value else "does not pass it"
        problem = SettingProblem(
            "ignores",
            f"{written} is ignored: the program {passed}",
            (f"{source}:{argument.location.line} {has}, and the program does not read {name}",),
            setting.location,
            advice=f"change it in {source}",
        )
        plan = replace(job.plan, attn_implementation=argument.value) if name == "attn_implementation" else job.plan
        job = replace(job, plan=plan, problems=(*job.problems, problem))
    return job


def _find_model_argument(launch: Launch, name: str) -> FixedSetting | None:
    program = launch.words[0].text if launch.words else ""
    is_module = any(word.text in ("-m", "--module") for word in launch.launcher_words)
    place = find_program(launch, Entry(program), ()) if is_module or "." in program else None
    return _read_model_argument(place[0], place[1].folders, place[1].base, name) if place is not None else None


@lru_cache(maxsize=512)
def _read_model_argument(entry: Entry, folders: tuple[Path, ...], base: Path, name: str) -> FixedSetting | None:
    tree = SourceTree(folders, base)
    main = find_entry(entry, tree)
    if main is None:
        return None
    arguments = (*find_model_arguments(tree, main, (name,)), *find_unpassed(tree, main, name))
    return next(iter(arguments), None)

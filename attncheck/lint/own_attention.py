"""Judges a launch whose program registers its own attention function, or loads its model with a fixed one.

The program's source is read, and never run.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Source, SourceLocation
from attncheck.doctor.probes.payload.model.registered_attention import find_unmasked_attentions
from attncheck.lint.programs.modules import SourceModule, SourceTree
from attncheck.lint.programs.places import find_program
from attncheck.lint.programs.program import Entry, find_entry

NO_MASK = (
    "transformers 5.23.0 masking_utils.py, _preprocess_mask_arguments: an implementation that is not in"
    " ALL_MASK_ATTENTION_FUNCTIONS gets attention_mask=None"
)
ADVICE = 'transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("{0}", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])'
ARGUMENTS = frozenset({"attn_implementation", "torch_dtype", "dtype"})
LOADS = ("from_pretrained", "from_config", "_from_config")


@dataclass(frozen=True)
class FixedArgument:
    """The value that a program's source gives an argument of `from_pretrained`, and where."""

    value: str
    location: SourceLocation


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
    for setting in (*job.settings, *launch.entries):
        name = setting.name.lstrip("+-").rpartition(".")[2]
        if name not in ARGUMENTS or not setting.known or setting.location in {u.location for u in job.unknown_settings}:
            continue
        fixed = _find_fixed_argument(launch, name)
        if fixed is None or fixed.value == setting.value.strip("\"'"):
            continue
        written, source = f"{setting.name.lstrip('-')}={setting.value}", fixed.location.source
        problem = SettingProblem(
            "ignores",
            f"{written} is ignored: the program loads its model with {name}={fixed.value}",
            (f"{source}:{fixed.location.line} has that value, and the program does not read {name}",),
            setting.location,
            advice=f"change it in {source}",
        )
        plan = replace(job.plan, attn_implementation=fixed.value) if name == "attn_implementation" else job.plan
        job = replace(job, plan=plan, problems=(*job.problems, problem))
    return job


def _find_fixed_argument(launch: Launch, name: str) -> FixedArgument | None:
    program = launch.words[0].text if launch.words else ""
    is_module = any(word.text in ("-m", "--module") for word in launch.launcher_words)
    place = find_program(launch, Entry(program), ()) if is_module or "." in program else None
    return _read_fixed_argument(place[0], place[1].folders, place[1].base, name) if place is not None else None


@lru_cache(maxsize=512)
def _read_fixed_argument(entry: Entry, folders: tuple[Path, ...], base: Path, name: str) -> FixedArgument | None:
    """Return the only value of an argument in all calls that load a model; None if values differ or may be read.

    Neither the program's own module nor one that loads a model may name the setting.
    """
    tree = SourceTree(folders, base)
    main = find_entry(entry, tree)
    modules = list({module.path: module for module in (main, *tree.iter_imports(main))}.values()) if main else []
    arguments = [(module, argument) for module in modules for argument in _iter_arguments(module, name)]
    loaders = [main, *(module for module, _ in arguments)]
    values = {_format_literal(argument) for _, argument in arguments}
    if len(values) != 1 or "" in values or tree.unread or any(_may_read(module, name) for module in loaders if module):
        return None
    module, argument = arguments[0]
    return FixedArgument(values.pop(), SourceLocation(module.shown_path, argument.lineno, argument.col_offset + 1))


def _iter_arguments(module: SourceModule, name: str) -> Iterator[ast.expr]:
    """Yield an argument's values in the calls that load a model, and each `**` that may contain it."""
    for node in ast.walk(module.body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADS:
            owner = ast.unparse(node.func.value)
            if "model" in owner.lower() or "For" in owner:
                yield from (keyword.value for keyword in node.keywords if keyword.arg in (name, None))


def _format_literal(argument: ast.expr) -> str:
    """Return a literal's text or the name of torch's dtype; "" if the value is known only at run time."""
    if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id == "torch":
        return argument.attr
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def _may_read(module: SourceModule, name: str) -> bool:
    """Return whether a module reads an attribute or a key of this name: `args.attn_implementation`."""
    return any(name in (getattr(node, "attr", ""), getattr(node, "value", "")) for node in ast.walk(module.body))

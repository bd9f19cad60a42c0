"""Judges a launch whose program registers its own attention function, or loads its model with a fixed one.

The program's source is read, and never run.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
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
MAX_MODULES = 60  # of one program


@dataclass(frozen=True)
class FixedArgument:
    """The value that a program's source gives an argument of `from_pretrained`, and where."""

    value: str
    location: SourceLocation


def add_own_attention(job: Job, launch: Launch, read_file: Callable[[str], Source | None]) -> Job:
    """Return the job with the problem that its script registers the attention it requires, and no mask for it."""
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
    """Return the job with the settings that its program ignores, because its source has a value in their place."""
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
            (f"{source}:{fixed.location.line} has that value, and no module of the program reads {name}",),
            setting.location,
            advice=f"change it in {source}",
        )
        plan = replace(job.plan, attn_implementation=fixed.value) if name == "attn_implementation" else job.plan
        job = replace(job, plan=plan, problems=(*job.problems, problem))
    return job


def _find_fixed_argument(launch: Launch, name: str) -> FixedArgument | None:
    program = launch.words[0].text if launch.words else ""
    is_module = any(word.text in ("-m", "--module") for word in launch.launcher_words)
    place = find_program(launch, Entry(program), ()) if program.endswith(".py") or is_module or "." in program else None
    return _read_fixed_argument(place[0], place[1].folders, place[1].base, name) if place is not None else None


@lru_cache(maxsize=512)
def _read_fixed_argument(entry: Entry, folders: tuple[Path, ...], base: Path, name: str) -> FixedArgument | None:
    """Return the one value that a program's calls give an argument; None if they differ, or it may be read."""
    tree = SourceTree(folders, base)
    main = find_entry(entry, tree)
    if main is None or not any(_iter_arguments([main, *tree.iter_imports(main)], name)):
        return None
    modules = [main, *tree.list_imported(main, MAX_MODULES)]
    arguments = list(_iter_arguments(modules, name))
    values = {_format_literal(argument) for _, argument in arguments}
    if len(values) > 1 or "" in values or tree.unread or len(modules) > MAX_MODULES or _may_read(modules, name):
        return None
    module, argument = arguments[0]
    return FixedArgument(values.pop(), SourceLocation(module.shown_path, argument.lineno, argument.col_offset + 1))


def _iter_arguments(modules: Sequence[SourceModule], name: str) -> Iterator[tuple[SourceModule, ast.expr]]:
    """Yield what the calls that load a model give an argument, with `**` for all that may hold it."""
    for module in modules:
        for node in ast.walk(module.body):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADS:
                yield from ((module, keyword.value) for keyword in node.keywords if keyword.arg in (name, None))


def _format_literal(argument: ast.expr) -> str:
    """Return a text, or the name of torch's dtype, "" for what only running tells."""
    if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id == "torch":
        return argument.attr
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def _may_read(modules: Sequence[SourceModule], name: str) -> bool:
    """Return whether some module names an attribute or a key so: `args.attn_implementation`."""
    nodes = (node for module in modules for node in ast.walk(module.body))
    return any(name in (getattr(node, "attr", ""), getattr(node, "value", "")) for node in nodes)

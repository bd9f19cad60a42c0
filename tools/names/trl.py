"""Builds attncheck/lint/names/trl.json from wheels of TRL and, for `trl sft`'s launcher, of accelerate.

    pip download --no-deps trl==VERSION … accelerate==VERSION
    python -m tools.names.trl DIRECTORY_OF_WHEELS

Which dataclasses a script takes (scripts/*.py, before 0.13 commands/scripts/*.py) and their fields, without those that
come from transformers' TrainingArguments; and the configurations of trainers whose scripts are examples, in trl.trainer
or trl.experimental. The keywords of the trainers' constructors. What `trl sft` does not know goes to `accelerate
launch` (cli/commands/training.py:58-71 of 1.16.0): its options are under "launcher", with "switch" for those without
value.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attncheck.lint.frameworks.trl.tables import TRAINER_CONFIGS
from tests.wheels import Wheel
from tools.names.dataclass_names import Package, extend_ranges, list_wheels, read_requirements, write_table

SCRIPT = re.compile(r"trl/(?:commands/)?scripts/(\w+)\.py")
CONFIG = re.compile(r"trl/(?:trainer|experimental/\w+)/\w+_config\.py")
TRAINER = re.compile(r"trl/(?:trainer|experimental/\w+)/\w+_trainer\.py")
SKIPPED_SCRIPTS = ("chat", "env", "vllm_serve", "utils", "_hf_argparser", "__init__")


def read_dataclasses(text: str) -> list[str]:
    """Return the dataclasses that a script gives to its parser."""
    for node in ast.walk(ast.parse(text)):
        argument: ast.expr | None = None
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "dataclass_types":
            argument = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("TrlParser", "HfArgumentParser") and node.args:
            argument = node.args[0]
        if isinstance(argument, ast.Tuple):
            return [ast.unparse(element) for element in argument.elts]
    return []


def launcher_options(wheel: Wheel) -> Iterator[tuple[str, str]]:
    """Yield the options of `accelerate launch` and what each takes."""
    tree = wheel.parse_module("accelerate.commands.launch")
    assert tree is not None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            kind = "switch" if "store_" in keywords.get("action", "") else keywords.get("type", "str")
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value).lstrip("-").replace("-", "_"), kind


def list_classes(package: Package, names: Iterable[str], pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the classes of trainers and their files: their scripts are examples, which no wheel has.

    Of a class that moved to trl.experimental the one there: its old place keeps a shell without fields.
    """
    for name in sorted(names):
        files = sorted(file for file in package.classes.get(name, {}) if pattern.fullmatch(file))
        if files:
            yield name, files[0]


def main(directory: Path) -> None:
    """Write the table."""
    wheels = list_wheels(directory, "trl")
    versions = list(wheels)
    classes: dict[str, dict[str, list[list[Any]]]] = {}
    scripts: dict[str, list[list[Any]]] = {}
    requirements: dict[str, list[list[Any]]] = {}
    for position, wheel in enumerate(wheels.values()):
        package = Package(wheel, "trl/")
        files: dict[str, str] = {}
        for name, specifier in read_requirements(wheel).items():
            extend_ranges(requirements.setdefault(name, []), position, versions, [specifier])
        for file in sorted(wheel.names):
            script = SCRIPT.fullmatch(file)
            names = read_dataclasses(wheel.read(file)) if script and script[1] not in SKIPPED_SCRIPTS else []
            if script and any(name.endswith("Config") for name in names):
                dataclasses = [_table_name(name, script[1], file in package.classes.get(name, {})) for name in names]
                extend_ranges(scripts.setdefault(script[1], []), position, versions, [dataclasses])
                files.update(dict.fromkeys(dataclasses, file))
        for class_name, file in list_classes(package, TRAINER_CONFIGS.values(), CONFIG):
            files.setdefault(class_name, file)
        trainers = (name.removesuffix("Config") + "Trainer" for name in TRAINER_CONFIGS.values())
        for class_name, file in list_classes(package, trainers, TRAINER):
            for name, row in package.collect_arguments(class_name, file).items():
                extend_ranges(classes.setdefault(class_name, {}).setdefault(name, []), position, versions, row)
        for class_name, file in files.items():
            for name, row in package.collect_options(class_name.split(".")[-1], file).items():
                extend_ranges(classes.setdefault(class_name, {}).setdefault(name, []), position, versions, row)
    accelerate = list(list_wheels(directory, "accelerate").values())[-1]
    source = f"the wheels of trl {versions[0]} to {versions[-1]}, and {accelerate.path.name.rsplit('-', 3)[0]}"
    write_table(
        "trl",
        source,
        versions,
        classes,
        requires=requirements,
        scripts=scripts,
        launcher=dict(launcher_options(accelerate)),
    )


def _table_name(name: str, script: str, is_own: bool) -> str:
    """Return how a class is called in the table: that of a script's own file with the script's name in front."""
    return f"{script}.{name}" if is_own else name


if __name__ == "__main__":
    main(Path(sys.argv[1]))

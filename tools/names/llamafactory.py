"""Builds attncheck/lint/names/llamafactory.json from wheels of LLaMA-Factory.

    pip download --no-deps llamafactory==VERSION …
    python -m tools.names.llamafactory DIRECTORY_OF_WHEELS

The dataclasses that `llamafactory-cli train` parses (hparams/parser.py, `_TRAIN_ARGS`), without the fields that come
from transformers' Seq2SeqTrainingArguments. The choices of `template` are the names that data/template.py registers:
get_template_and_fix_tokenizer refuses others (0.9.5 data/template.py:639, "does not exist"; 0.9.0:366).
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from tests.wheels import Wheel
from tools.names.dataclass_names import Package, extend_ranges, list_wheels, read_requirements, write_table

DATACLASSES = ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments")
FOLDERS = ("llamafactory/hparams/", "llamafactory/extras/constants.py")


def read_templates(wheel: Wheel) -> list[str]:
    """Return the names of the templates that a wheel registers."""
    nodes = ast.walk(ast.parse(wheel.read("llamafactory/data/template.py")))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    registering = [call for call in calls if ast.unparse(call.func).endswith("register_template")]
    values = [keyword.value for call in registering for keyword in call.keywords if keyword.arg == "name"]
    return sorted({ast.literal_eval(value) for value in values})


def main(directory: Path) -> None:
    """Write the table."""
    wheels = list_wheels(directory, "llamafactory")
    versions = list(wheels)
    classes: dict[str, dict[str, list[list[Any]]]] = {name: {} for name in DATACLASSES}
    requirements: dict[str, list[list[Any]]] = {}
    for position, wheel in enumerate(wheels.values()):
        package = Package(wheel, *FOLDERS)
        for name, specifier in read_requirements(wheel).items():
            extend_ranges(requirements.setdefault(name, []), position, versions, [specifier])
        for class_name in DATACLASSES:
            for name, row in package.collect_options(class_name).items():
                row = [*row[:2], read_templates(wheel)] if name == "template" else row
                extend_ranges(classes[class_name].setdefault(name, []), position, versions, row)
    source = f"the wheels of llamafactory {versions[0]} to {versions[-1]}"
    write_table("llamafactory", source, versions, classes, requires=requirements)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

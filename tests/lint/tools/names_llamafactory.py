"""Builds attncheck/lint/names/llamafactory.json from wheels of LLaMA-Factory.

    pip download --no-deps llamafactory==VERSION …
    python -m tests.lint.tools.names_llamafactory DIRECTORY_OF_WHEELS

The dataclasses that `llamafactory-cli train` parses (hparams/parser.py, `_TRAIN_ARGS`), without the fields that come
from transformers' Seq2SeqTrainingArguments.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.lint.tools.dataclass_names import Package, extend, requires, wheels, write

TAKEN = ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments")
FOLDERS = ("llamafactory/hparams/", "llamafactory/extras/constants.py")


def main(directory: Path) -> None:
    """Write the table."""
    found = wheels(directory, "llamafactory")
    versions = list(found)
    classes: dict[str, dict[str, list[list[Any]]]] = {name: {} for name in TAKEN}
    demands: dict[str, list[list[Any]]] = {}
    for position, wheel in enumerate(found.values()):
        package = Package(wheel, *FOLDERS)
        for name, specifier in requires(wheel).items():
            extend(demands.setdefault(name, []), position, versions, [specifier])
        for each in TAKEN:
            for name, row in package.fields(each).items():
                extend(classes[each].setdefault(name, []), position, versions, row)
    source = f"the wheels of llamafactory {versions[0]} to {versions[-1]}"
    write("llamafactory", source, versions, classes, requires=demands)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Builds attncheck/lint/names/transformers.json from wheels of transformers, one a minor release.

    pip download --no-deps transformers==VERSION …
    python -m tools.names.transformers DIRECTORY_OF_WHEELS

The fields of `TrainingArguments` (training_args.py) and what `Seq2SeqTrainingArguments` adds
(training_args_seq2seq.py), as options of a command; and the keywords of the constructor of `Trainer` (trainer.py),
which `Seq2SeqTrainer` takes too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tools.names.dataclass_names import Package, extend_ranges, list_wheels, write_table

FILES = (
    *("transformers/training_args.py", "transformers/training_args_seq2seq.py", "transformers/trainer_utils.py"),
    *("transformers/trainer.py", "transformers/trainer_seq2seq.py"),
)
TRAINERS = ("Trainer", "Seq2SeqTrainer")


def main(directory: Path) -> None:
    """Write the table."""
    wheels = list_wheels(directory, "transformers")
    versions = list(wheels)
    tables: dict[str, dict[str, list[list[Any]]]] = {"TrainingArguments": {}, "Seq2SeqTrainingArguments": {}}
    for position, wheel in enumerate(wheels.values()):
        package = Package(wheel, *FILES)
        plain, more = package.collect_options("TrainingArguments"), package.collect_options("Seq2SeqTrainingArguments")
        assert len(plain) > 90 and len(more) > len(plain), versions[position]
        for name, row in plain.items():
            extend_ranges(tables["TrainingArguments"].setdefault(name, []), position, versions, row)
        for trainer in TRAINERS:
            for name, row in package.collect_arguments(trainer).items():
                extend_ranges(tables.setdefault(trainer, {}).setdefault(name, []), position, versions, row)
        for name, row in more.items():
            if name not in plain:
                extend_ranges(tables["Seq2SeqTrainingArguments"].setdefault(name, []), position, versions, row)
    write_table("transformers", f"the wheels of transformers {versions[0]} to {versions[-1]}", versions, tables)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

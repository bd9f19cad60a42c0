"""Builds attncheck/lint/names/ms_swift.json from the wheels of ms-swift, releases 2.0.0 and newer.

    pip download --no-deps ms-swift==VERSION …
    python -m tools.names.ms_swift DIRECTORY

The fields are those of the dataclasses that `swift pt`, `swift sft` and `swift rlhf` parse (arguments/*.py, in 3.x
llm/argument/*.py, in 2.x llm/utils/argument.py). The fields of transformers' own `Seq2SeqTrainingArguments`, from which
they inherit since 3.0, depend on the transformers that is installed: names/transformers.json has them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from packaging.version import Version

from tools.names.axolotl import COLUMNS, annotation_kind, list_releases, read_requirements, write_table
from tools.names.class_fields import Package, build_ranges, read_package

TARGET = Path(__file__).parents[2] / "attncheck" / "lint" / "names" / "ms_swift.json"
PACKAGES = ("transformers", "torch", "flash-attn", "trl", "peft", "liger-kernel", "accelerate", "deepspeed", "datasets")
NEW_PATHS = {"sft": "swift.arguments.sft_args.SftArguments", "rlhf": "swift.arguments.rlhf_args.RLHFArguments"}
OLD_PATHS = {
    "sft": "swift.llm.argument.train_args.TrainArguments",
    "rlhf": "swift.llm.argument.rlhf_args.RLHFArguments",
}
OLDEST_PATHS = {"sft": "swift.llm.utils.argument.SftArguments", "rlhf": "swift.llm.utils.argument.RLHFArguments"}


def read_fields(package: Package, path: str) -> dict[str, list[Any]]:
    """Return the fields of a class, its bases' with them."""
    module, _, name = path.rpartition(".")
    return {
        field: [annotation_kind(annotation), default]
        for field, (annotation, default) in package.collect_fields(module, name).items()
    }


def main(directory: Path) -> None:
    """Write the table."""
    archives = list_releases(directory, r"ms_swift-([\d.]+(?:\.post\d+)?)-py3-none-any\.whl$")
    names: dict[str, dict[str, list[Any]]] = {}
    reinforced: dict[str, dict[str, list[Any]]] = {}
    needs = {}
    for version, archive in archives.items():
        package = read_package(archive, "swift")
        paths = NEW_PATHS if Version(version) >= Version("4") else OLD_PATHS
        if Version(version) < Version("3"):
            text = package.texts["swift.llm.utils.argument"]
            rlhf = "RLHFArguments" if "class RLHFArguments" in text else "DPOArguments"
            paths = {**OLDEST_PATHS, "rlhf": OLDEST_PATHS["rlhf"].replace("RLHFArguments", rlhf)}
        names[version], more = read_fields(package, paths["sft"]), read_fields(package, paths["rlhf"])
        reinforced[version] = {name: row for name, row in more.items() if names[version].get(name) != row}
        needs[version] = read_requirements(package.metadata, PACKAGES)
        if Version(version) < Version("3"):
            assert len(names[version]) > 100 and {"use_flash_attn", "sft_type"} <= set(names[version]), version
            continue
        assert len(names[version]) > 100 and {"attn_impl", "sequence_parallel_size"} <= set(names[version]), version
        assert any("Seq2SeqTrainingArguments" in name for name in package.foreign), package.foreign
    versions = list(archives)
    head = {
        "source": f"the wheels of ms-swift {versions[0]} to {versions[-1]}: arguments, trainers, METADATA",
        "columns": COLUMNS,
        "versions": versions,
    }
    tables = {"requires": needs, "names": names, "rlhf": reinforced}
    write_table(TARGET, head, {key: build_ranges(versions, rows) for key, rows in tables.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

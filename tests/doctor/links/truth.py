"""The truth about imports: recorded by importing, kept as JSON, and compared with a prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.doctor.links import import_recorder, sites
from tests.doctor.links.sites import Pair

DATA = Path(__file__).parents[2] / "data" / "links"
# Kinds of failure that a linker is there to foresee, in packages that it looks into.
LINK_FAILURES = ("missing name", "missing submodule", "missing attribute")
PROVIDERS = """
    transformers flash_attn liger_kernel ring_flash_attn trl peft accelerate kernels deepspeed yunchang
    huggingface_hub torch
"""
Truth = dict[str, dict[str, Any]]  # module -> its record


def record_imports(package: str, site_dirs: list[Path], folder: Path, *options: str) -> Truth:
    """Return what importing each module of a package gave: no GPU, an empty home; `options` are the recorder's."""
    output = folder / "imports.jsonl"
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, site_dirs)),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",  # LLaMA-Factory's: it would refuse before it imports
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(import_recorder.__file__), package, str(output), *options]
    with (folder / "log").open("w") as log:
        subprocess.run(command, env=environment, cwd=folder, stdout=log, stderr=log, check=True, timeout=3600)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    return {record.pop("module"): record for record in sorted(records, key=lambda record: str(record["module"]))}


def record_pair(pair: Pair, folder: Path) -> Truth:
    """Return the truth of a pair of released wheels, as on a machine with a GPU."""
    return record_imports(pair.package, sites.list_sites(pair), folder, "--cuda")


def is_link_failure(record: Mapping[str, Any]) -> bool:
    """Return whether a module failed for a name that a package of the attention stack lacks."""
    return record["kind"] in LINK_FAILURES and record["provider"].partition(".")[0] in PROVIDERS.split()


def failing_package(record: Mapping[str, Any]) -> str:
    """Return the package whose own file failed: another than the consumer if that could not be imported."""
    frames = record.get("frames") or [""]
    return str(frames[-1]).partition("/")[0]


@dataclass(frozen=True)
class Comparison:
    """Where a prediction and the truth part."""

    misses: tuple[str, ...]
    false_alarms: tuple[str, ...]
    hits: int
    silent: int  # modules that can be imported, rightly not predicted


def compare(truth: Truth, predicted: Mapping[str, str], package: str) -> Comparison:
    """Return how far a prediction is right; what fails for another reason, or in another package, is not judged."""
    failed = {
        module: record
        for module, record in truth.items()
        if is_link_failure(record)
        and failing_package(record) == package
        and not record["provider"].startswith(f"{package}.")  # of its own: a wheel that is not whole
    }
    imported = [module for module, record in truth.items() if record["kind"] == "ok"]
    return Comparison(
        misses=tuple(f"{m}: {r['provider']}:{r['name']}" for m, r in failed.items() if m not in predicted),
        false_alarms=tuple(f"{module}: {predicted[module]}" for module in imported if module in predicted),
        hits=sum(module in predicted for module in failed),
        silent=sum(module not in predicted for module in imported),
    )


def load_truth(name: str) -> Truth:
    """Return a truth that was recorded and checked in."""
    truth: Truth = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["modules"]
    return truth


def shorten_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what is not read again: all but the kind, if no name was missing."""
    keys = ("kind", "provider", "name", "frames", "parent") if is_link_failure(record) else ("kind", "provider")
    return {key: record[key] for key in keys if record.get(key)}


def save_truth(name: str, site: list[str], truth: Truth) -> Path:
    """Write a truth, a line for each module, so that a change can be read as a diff."""
    kept = {module: shorten_record(record) for module, record in truth.items()}
    lines = [f"{json.dumps(module)}: {json.dumps(record)}" for module, record in kept.items()]
    path = DATA / f"{name}.json"
    path.write_text(f'{{"site": {json.dumps(site)}, "modules": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    return path

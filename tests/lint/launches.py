"""The corpus of launches, the four environments it is linted in, and the models that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from attncheck.core.facts import Absent, Fact
from attncheck.core.launch import Source
from attncheck.core.model import Model
from attncheck.core.report import Report
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes import model as models
from attncheck.lint import launches, run
from attncheck.lint.context import Request
from tests import snapshots as s

FOLDER = Path(__file__).parents[1] / "data" / "launch"
V100 = (7, 0)
H200 = (9, 0)


def make_environments() -> dict[str, Snapshot]:
    """Return the four environments: a good stack on one H200, eight V100, a laptop, too new a transformers."""
    good = s.with_package(s.h200(), "transformers", "5.15.0")
    return {
        "h200": without_imports(good),
        "v100x8": without_imports(s.with_gpus(good, *[V100] * 8, name="Tesla V100-SXM2-32GB")),
        "laptop": without_imports(s.with_gpus(s.laptop())),
        "transformers-5.23": without_imports(
            s.with_package(s.with_gpus(good, *[H200] * 8, name="NVIDIA H200"), "transformers", "5.23.0")
        ),
    }


def without_imports(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the import lane, which lint does not run."""
    return replace(snapshot, imports=Absent("not asked"), interfaces=Absent("not asked"))


def iter_corpus() -> Iterator[Path]:
    """Yield every launch of the corpus."""
    return (path for path in sorted(FOLDER.glob("*/*")) if path.suffix in (".sh", ".yaml", ".yml", ".json", ".toml"))


@cache
def load_model_configs() -> dict[str, dict[str, Any]]:
    """Return the facts of the models that the corpus names: what their config.json says of attention."""
    configs: dict[str, dict[str, Any]] = json.loads((FOLDER / "models.json").read_text(encoding="utf-8"))
    return configs


def read_model(name: str) -> Fact[Model]:
    """Return a model of the corpus as its config.json would be read."""
    if name not in load_model_configs():
        return Absent(f"{name} is not in the cache")
    return models.read_model(name, {"config.json": json.dumps(load_model_configs()[name])})


def read_no_file(name: str) -> Source | None:
    """Read no file."""
    return None


def read_launch(path: Path) -> Source:
    """Return a launch of the corpus under its own name."""
    return replace(launches.read_source(str(path)), name=path.name)


def lint_file(path: Path, snapshot: Snapshot, **fields: Any) -> Report:
    """Return lint's report on one launch of the corpus."""
    return run.run(snapshot, Request((read_launch(path),), **fields), read_model, read_no_file)

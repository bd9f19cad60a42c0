"""Rehearses `scripts/train.py` with a fault in it: its processes are forks, its records are judged in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.rehearsal import DataForm, Objective
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.lint.fields.rehearsing import TRAINER_NORMALISATIONS
from attncheck.rehearsal.ending import judge_end
from attncheck.rehearsal.execution import Execution, count_steps, list_waits
from attncheck.rehearsal.worker import judging, materials

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "train.py"
REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = 900
STEPS = 24
LABELLED = Objective("labelled", TRAINER_NORMALISATIONS, "the test")
CODES = {
    "batch": "ATN431",
    "documents": "ATN432",
    "loss": "ATN433",
    "gradients": "ATN434",
    "learning": "ATN436",
    "update": "ATN438",
}


def nightly(*values: Any) -> Any:
    """Return the values of a test that shows more of what another one shows already: a nightly one."""
    return pytest.param(*values, marks=pytest.mark.nightly)


class ForkServer:
    """A process that forks the ranks of launches."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rehearsal.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, argv: Sequence[str], environ: Mapping[str, str], watch: Path, ranks: int) -> dict[str, Any]:
        """Run a launch; return the exit statuses of its ranks and the ends of what they printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"argv": list(argv), "environ": dict(environ), "watch": str(watch), "ranks": ranks}
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def make_materials(
    folder: Path,
    seed: int = 0,
    model: str = "llama",
    form: DataForm = "every",
    full_model: bool = False,
    real_data: str = "",
) -> Path:
    """Fill a folder with a small model and documents, as a rehearsal does, and return it.

    `full_model`: `model` is a user's own, in a folder, and is taken whole; `real_data`: the rows are of this file.
    """
    answer = ask_for_materials(folder, seed, model, form, full_model, real_data)
    assert "answer" in answer, answer
    return folder


def ask_for_materials(
    folder: Path,
    seed: int = 0,
    model: str = "llama",
    form: DataForm = "every",
    full_model: bool = False,
    real_data: str = "",
    documents: int = DOCUMENTS,
    pictures: str = "",
    stand_in_for: str = "",
    **options: Any,
) -> dict[str, Any]:
    """Fill a folder as `make_materials` does, and return what the worker answers last."""
    (folder / "data").mkdir(parents=True)
    message = {
        "model": model,
        "stage": str(folder),
        "documents": documents,
        "form": form,
        "seed": seed,
        "has_padding_token": True,
        "dtype": "float32",
        "full_model": full_model,
        "real_data": real_data,
        "is_float32": True,
        "pictures": pictures,
        "stand_in_for": stand_in_for,
        **options,
        "items": ("materials",),
    }
    answers: list[dict[str, Any]] = []
    materials.prepare(message, answers.append)
    return answers[-1]


def make_argv(folder: Path, options: str, steps: int = STEPS, script: Path = SCRIPT) -> list[str]:
    """Return the command of a training script on a folder of materials."""
    sizes = "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --learning_rate 5e-3 --max_length 256"
    return [
        str(script),
        *("--model_name_or_path", str(folder / "model"), "--data_path", str(folder / "data" / "train.jsonl")),
        *("--max_steps", str(steps), *sizes.split(), *options.split()),
    ]


def rehearse(
    server: ForkServer,
    folder: Path,
    watch: Path,
    options: str = "",
    fault: str = "",
    ranks: int = 1,
    objective: Objective = LABELLED,
    steps: int = STEPS,
    script: Path = SCRIPT,
    full_model: bool = False,
    real_data: bool = False,
    makes_rows: bool = False,
) -> dict[str, CheckResult]:
    """Run the script with a fault over `ranks` processes, and return the result of each check."""
    watch.mkdir(parents=True)
    ended = server.run(make_argv(folder, options, steps, script), {"PLANTED_FAULT": fault}, watch, ranks)
    if waits := list_waits(str(watch)):
        return {"run": judge_end(Execution(None, count_steps(str(watch)), (), 0.0, waits=waits))}
    assert set(ended["statuses"]) == {0}, ended
    return judge(folder, watch, objective, full_model, real_data, makes_rows=makes_rows)


def judge(
    folder: Path,
    watch: Path,
    objective: Objective,
    full_model: bool = False,
    real_data: bool = False,
    checks: Sequence[str] = judging.CHECKS,
    rates: tuple[float, float] = (0.0, 0.0),
    makes_rows: bool = False,
) -> dict[str, CheckResult]:
    """Return the result of each check of the records in a folder."""
    stage = watch.parent / f"{watch.name}-stage"
    stage.mkdir()
    for name in ("model", "data", "pictures", "documents.json", "vocabulary.json", "rows.json"):
        if (folder / name).exists():
            (stage / name).symlink_to(folder / name)
    (stage / "watch").symlink_to(watch)
    answers: list[dict[str, Any]] = []
    message = {
        "stage": str(stage),
        "objective": codec.to_plain(objective),
        "items": checks,
        "full_model": full_model,
        "real_data": real_data,
        "rates": rates,
        "makes_rows": makes_rows,
    }
    judging.judge(message, answers.append)
    return {answer["item"]: codec.read(CheckResult, answer["answer"]) for answer in answers if "item" in answer}


def list_failures(results: Mapping[str, CheckResult]) -> dict[str, str]:
    """Return the code of each check that fails, and all that it says."""
    return {
        CODES[name]: "\n".join((deciding_reason(result), *result.violations, *result.notes))
        for name, result in results.items()
        if judge_result(result) == "fail"
    }

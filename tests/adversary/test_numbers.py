"""Numbers that no machine has, in every JSON file that a command reads: a report or one line, and never a crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.codec import BadDocument
from attncheck.core.io.failures import TRACEBACK_VARIABLE
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, PlanRun, SmokeSection, Step
from attncheck.report import document
from attncheck.stacks.lock.make import make_lock
from tests.adversary import hostile_text
from tests.adversary.in_process import run_entry
from tests.adversary.mutation import _iter_places as iter_places
from tests.adversary.outcomes import find_fault
from tests.adversary.test_fuzz import BASELINE, DATA, LAUNCH, MODELS
from tests.report import reports
from tests.snapshots import h200

SEED = 20261126
QUICK, NIGHTLY = 12, 300  # files of each kind
RAW = (
    *("9" * 400, "-" + "9" * 400, "9" * 5000, "1" + "0" * 308, str(2**63), str(2**64), str(-(2**63)), str(10**30)),
    *("1e999", "-1e999", "1e308", "-1e308", "1e-999999999", "0.1e99999999999999999999", "1e+0000000000400"),
    *("NaN", "Infinity", "-Infinity", "-0", "-0.0", "1e31", "0." + "3" * 5000),
    *("[" * 100_000, '{"a":' * 50_000, "[" * 900 + "]" * 900),
)
MARK = "@number@"


@dataclass(frozen=True)
class Kind:
    """One kind of file: documents to change, its path, and the commands that read it."""

    documents: Callable[[], list[Any]]
    path: str
    commands: tuple[str, ...]


@cache
def make_reports() -> list[Any]:
    return [json.loads(document.dumps(report)) for report in hostile_text.make_reports()]


@cache
def make_locks() -> list[Any]:
    return [json.loads(codec.dumps(make_lock(h200(), hostile_text.make_reports(), "2026-11-26")))]


FACTS = str(DATA / "snapshots" / "h200.json")
KINDS = {
    "facts": Kind(
        lambda: [json.loads(path.read_bytes()) for path in sorted((DATA / "snapshots").glob("*.json"))[:4]],
        "facts.json",
        (
            *("doctor --facts facts.json --format json", "doctor --facts facts.json --format html"),
            *("lock new.json --facts facts.json", "upgrade transformers==5.17.0 --facts facts.json"),
            f"diff facts.json {FACTS}",
        ),
    ),
    "reports": Kind(
        make_reports,
        "report.json",
        (
            *(f"report report.json --format {name}" for name in ("text", "markdown", "html", "junit", "sarif", "json")),
            *(f"diff report.json {FACTS}", f"lock new.json --facts {FACTS} --report report.json"),
        ),
    ),
    "locks": Kind(make_locks, "lock.json", (f"lock --check lock.json --facts {FACTS}", f"diff lock.json {FACTS}")),
    "baselines": Kind(
        lambda: [BASELINE], "baseline.json", ("gate --checks doctor --target h100x8 --baseline baseline.json",)
    ),
    "models": Kind(
        lambda: [json.loads(config) for config in MODELS],
        "model/config.json",
        ("doctor model --lane static --target h100x8", "probe model --lane static"),
    ),
    "launches": Kind(
        lambda: [{"model_name_or_path": "m", "max_length": 4096, "learning_rate": 1e-5, "packing": True}],
        "launch.json",
        ("lint launch.json --target h100x8", "gate --checks lint --launch launch.json --target h100x8"),
    ),
    "requirements": Kind(
        lambda: [{"_meta": {"requires": {"python_version": "3.11"}}, "default": {"torch": {"version": "==2.9.0"}}}],
        "Pipfile.lock",
        ("doctor --target h100x8,Pipfile.lock",),
    ),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    (tmp_path / "model").mkdir()
    (tmp_path / "launch.sh").write_text(LAUNCH)


def write_changed(chance: random.Random, kind: Kind) -> str:
    """Write a document with a hostile number in one place, most often in that of a number; return the place."""
    content = chance.choice(kind.documents())
    places = list(iter_places(content))
    numbers = [(holder, key) for holder, key in places if type(holder[key]) in (int, float)]
    holder, key = chance.choice(numbers if numbers and chance.random() < 0.8 else places)
    before, holder[key] = holder[key], MARK
    raw = chance.choice(RAW)
    try:
        Path(kind.path).write_text(json.dumps(content).replace(f'"{MARK}"', raw))
    finally:
        holder[key] = before
    return f"{key} = {raw[:30]}"


def list_faults(name: str, count: int) -> Iterator[str]:
    kind = KINDS[name]
    for number in range(count):
        chance = random.Random(f"{SEED} {name} {number}")
        place = write_changed(chance, kind)
        Path("new.json").unlink(missing_ok=True)
        command = chance.choice(kind.commands)
        ended = run_entry(*command.split())
        fault = find_fault(ended.code, ended.stdout, ended.stderr)
        if fault:
            yield f"{number}: {command}: {place}: {fault}: {ended.stderr[-1500:]}"


@pytest.mark.parametrize("count", [QUICK, pytest.param(NIGHTLY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_number_is_a_report_or_a_line(name: str, count: int) -> None:
    assert not list(list_faults(name, count))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9" * 400, "a number has 400 digits"),
        ("-" + "9" * 5000, "a number has 5001 digits"),
        ("NaN", "NaN is not a number"),
        ("-Infinity", "-Infinity is not a number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_number_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        codec.parse(f'{{"x": {text}}}')


def test_what_is_read_stays_a_number() -> None:
    assert codec.parse("[1e999, -1e999, 1e308, 1e30, 1000000000000000019884624838656, -0.5]") == [
        *(codec.HUGE, -codec.HUGE, codec.HUGE, 1e30, 1000000000000000019884624838656, -0.5)
    ]
    assert codec.read(tuple[float, ...], [10**400, -(10**400), 3]) == (codec.HUGE, -codec.HUGE, 3.0)


def test_what_is_written_is_json() -> None:
    values = {"a": float("nan"), "b": [float("inf"), -float("inf"), 1.5], "c": "NaN"}
    assert codec.parse(codec.write(values)) == {"a": codec.HUGE, "b": [codec.HUGE, -codec.HUGE, 1.5], "c": "NaN"}


def test_a_training_that_diverged_is_a_report_that_can_be_read() -> None:
    step = Step(float("nan"), float("inf"), 1.0, 0)
    section = SmokeSection(plan_runs=(PlanRun("llama", Plan(), (CheckResult("training", steps=(step,)),)),))
    text = document.dumps(reports.make_smoke_report().with_section(section))
    assert "NaN" not in text and "Infinity" not in text
    read = document.loads(text).section(SmokeSection)
    assert read is not None and read.plan_runs[0].results[0].steps == (Step(codec.HUGE, codec.HUGE, 1.0, 0),)

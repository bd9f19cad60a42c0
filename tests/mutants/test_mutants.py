"""A wrong change to how a verdict is reached fails a test: 19 of 20 in a seeded sample of the deciding code."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from tests.mutants.operators import Mutant, make_mutants

ROOT = Path(__file__).parents[2]
REFERENCE = "attncheck/attention/reference"
ALWAYS = ("tests/attention/test_sigma.py", "tests/attention/test_noise_model.py", "tests/measure/test_sessions.py")
RING = ("tests/ring/test_ranks.py", "tests/ring/test_planted_ring.py")
MODULES = {  # and their tests: first those that are mostly a module's own
    "attncheck/core/verdicts.py": ("tests/core/test_verdicts.py", *ALWAYS),
    "attncheck/measure/determinism.py": ("tests/measure/test_determinism.py",),
    "attncheck/measure/worker/judging.py": ("tests/measure/test_sessions.py", *ALWAYS),
    "attncheck/measure/worker/session.py": ("tests/measure/test_sessions.py", "tests/measure/test_guarded_calls.py"),
    "attncheck/ring/parity.py": RING,
    "attncheck/ring/worker/session.py": RING,
    f"{REFERENCE}/error_patterns.py": ("tests/attention/test_error_patterns.py", "tests/measure/test_sessions.py"),
    f"{REFERENCE}/oracle.py": ("tests/attention/test_oracle.py", *ALWAYS),
    f"{REFERENCE}/rounding_noise.py": ALWAYS,
    f"{REFERENCE}/score.py": ("tests/attention/test_score.py", *ALWAYS),
    f"{REFERENCE}/structured_dropout.py": (
        "tests/attention/test_structured_dropout.py",
        "tests/measure/test_sessions.py",
    ),
    f"{REFERENCE}/structured_edits.py": ("tests/attention/test_structured_edits.py", "tests/measure/test_sessions.py"),
    f"{REFERENCE}/structured_keys.py": ("tests/attention/test_structured_keys.py", "tests/measure/test_sessions.py"),
    f"{REFERENCE}/structured_targets.py": ("tests/attention/test_structured_keys.py", "tests/measure/test_sessions.py"),
}
SAMPLE = int(os.environ.get("ATTNCHECK_MUTANTS", "80"))
WORKERS = max(1, (os.cpu_count() or 1))
SECONDS = 900.0


@dataclass(frozen=True)
class Outcome:
    module: str
    mutant: Mutant
    killer: str  # "" if it survived

    def format_line(self) -> str:
        return f"{self.module}:{self.mutant.line} {self.mutant.change}: {self.killer or 'SURVIVED'}"


def choose_mutants(seed: int) -> list[tuple[str, Mutant]]:
    """Return a seeded sample of the mutants of all modules."""
    mutants = {module: list(make_mutants((ROOT / module).read_text("utf-8"))) for module in MODULES}
    rng = random.Random(seed)
    everything = [(module, mutant) for module, found in mutants.items() for mutant in found]
    return rng.sample(everything, SAMPLE)


def kill(folder: Path, module: str, mutant: Mutant) -> Outcome:
    """Run the tests on a copy of the project that has the mutant, the module's own first."""
    path = folder / module
    original = path.read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    try:
        return Outcome(module, mutant, find_failing(folder, MODULES[module]))
    finally:
        path.write_text(original, "utf-8")


def find_failing(folder: Path, tests: Iterable[str]) -> str:
    """Return the first test file that fails on a copy of the project, or ""."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    for test in dict.fromkeys(tests):
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", test]
        try:
            run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"{test} (no end)"
        if run.returncode:
            return test
    return ""


def copy_project(folder: Path) -> Path:
    """Copy what the tests need, so that the project itself is never changed."""
    for name in ("attncheck", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.nightly
def test_every_mutant_is_valid_and_differs() -> None:
    for module in MODULES:
        source = (ROOT / module).read_text("utf-8")
        mutants = list(islice(make_mutants(source), 0, 50, 5))
        assert mutants
        for mutant in mutants:
            compile(mutant.source, module, "exec")
            assert mutant.source != source


@pytest.mark.nightly
def test_nineteen_of_twenty_mutants_are_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = choose_mutants(seed=0)
    folders = [copy_project(tmp_path / str(index)) for index in range(WORKERS)]
    assert not find_failing(folders[0], {test for tests in MODULES.values() for test in tests}), (
        "it fails on a project without a mutant"
    )

    def run_share(index: int) -> list[Outcome]:
        return [show(kill(folders[index], *pair)) for pair in chosen[index::WORKERS]]

    def show(outcome: Outcome) -> Outcome:
        print("  " + outcome.format_line(), file=sys.__stdout__, flush=True)  # from several threads
        return outcome

    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = [outcome for share in pool.map(run_share, range(WORKERS)) for outcome in share]
    killed = [outcome for outcome in outcomes if outcome.killer]
    with capsys.disabled():
        print(f"{len(killed)} of {len(outcomes)} mutants killed")
    assert len(killed) >= 0.95 * len(outcomes)

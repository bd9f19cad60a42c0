"""`python -m tests.mutants --seed N` draws mutants of the deciding code, and runs its tests against each."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.operators import Mutant, make_mutants

ROOT = Path(__file__).parents[2]
REFERENCE = "attncheck/attention/reference"
LIMITS = "tests/measure/test_session_limits.py"
SESSIONS = "tests/measure/test_sessions.py"
ALWAYS = ("tests/attention/test_sigma.py", "tests/attention/test_noise_model.py", SESSIONS)
KEYS = ("tests/attention/test_structured_keys.py", SESSIONS)
RING = ("tests/ring/test_runs_of_ranks.py", "tests/ring/test_ranks.py", "tests/ring/test_planted_ring.py")
MODULES = {  # and their tests: first those that are mostly a module's own
    "attncheck/core/verdicts.py": ("tests/core/test_verdicts.py", *ALWAYS),
    "attncheck/measure/determinism.py": (
        "tests/measure/test_determinism_limits.py",
        "tests/measure/test_determinism.py",
    ),
    "attncheck/measure/worker/judging.py": ("tests/measure/test_shared_results.py", LIMITS, SESSIONS, *ALWAYS),
    "attncheck/measure/worker/session.py": (LIMITS, SESSIONS, "tests/measure/test_guarded_calls.py"),
    "attncheck/ring/determinism.py": RING,
    "attncheck/ring/parity.py": RING,
    "attncheck/ring/worker/session.py": RING,
    f"{REFERENCE}/error_patterns.py": ("tests/attention/test_error_patterns.py", SESSIONS),
    f"{REFERENCE}/oracle.py": ("tests/attention/test_oracle.py", *ALWAYS),
    f"{REFERENCE}/rounding_noise.py": (*ALWAYS, "tests/attention/test_oracle.py"),
    f"{REFERENCE}/score.py": ("tests/attention/test_score.py", *ALWAYS),
    f"{REFERENCE}/structured_common.py": KEYS,
    f"{REFERENCE}/structured_dropout.py": ("tests/attention/test_structured_dropout.py", SESSIONS),
    f"{REFERENCE}/structured_edits.py": ("tests/attention/test_structured_edits.py", SESSIONS),
    f"{REFERENCE}/structured_keys.py": KEYS,
    f"{REFERENCE}/structured_targets.py": ("tests/attention/test_structured_edits.py", *KEYS),
}
SECONDS = 600  # for one file of tests


@dataclass(frozen=True)
class Outcome:
    """The test file that failed on a mutant, "" if it survived."""

    module: str
    mutant: Mutant
    killer: str

    def format_line(self) -> str:
        return f"{self.module}:{self.mutant.line} {self.mutant.change}: {self.killer or 'SURVIVED'}"


def choose_mutants(modules: Iterable[str], seed: int, count: int) -> list[tuple[str, Mutant]]:
    """Return a seeded sample of the mutants of these modules, all of them if there are no more."""
    found = [(name, mutant) for name in modules for mutant in make_mutants((ROOT / name).read_text("utf-8"))]
    return random.Random(seed).sample(found, min(count, len(found)))


def run_tests(tests: Sequence[str]) -> str:
    """Return the first test file that fails on this worker's copy of the project, or "".

    Each file runs in a fork of this process, which has torch imported and nothing of the project.
    """
    for test in dict.fromkeys(tests):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os._exit(_run_file(test))
        status = os.waitpid(child, 0)[1]
        try:
            os.killpg(child, signal.SIGKILL)  # what its tests left running
        except ProcessLookupError:
            pass
        if status:
            return test
    return ""


def _run_file(test: str) -> int:
    os.setsid()
    signal.alarm(SECONDS)
    with open(os.devnull, "r+b") as null:
        for stream in range(3):
            os.dup2(null.fileno(), stream)
    os.environ |= {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, os.getcwd())
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "attncheck")]:
        del sys.modules[name]
    return int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", test]))


def kill(pair: tuple[str, Mutant]) -> Outcome:
    """Run the tests of a module that has a mutant."""
    (module, mutant), path = pair, Path.cwd() / pair[0]
    original = path.read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.unlink(missing_ok=True)
    cached.mkdir(parents=True)  # so that no bytecode is kept, which two mutants of a second and size would share
    try:
        return Outcome(module, mutant, run_tests(MODULES[module]))
    finally:
        cached.rmdir()
        path.write_text(original, "utf-8")


def enter_copy(folder: Path) -> None:
    """Copy what the tests need to a folder of this worker's, so that the project itself is never changed."""
    copy = folder / str(os.getpid())
    for name in ("attncheck", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    os.chdir(copy)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--module", default="", help="only modules whose path contains this")
    options = parser.parse_args()
    modules = [module for module in MODULES if options.module in module]
    chosen = choose_mutants(modules, options.seed, options.count)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in ("torch", "torch.distributed", "xdist.plugin"):
        importlib.import_module(name)  # once, before the forks

    killed = 0
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, fork.Pool(options.workers, enter_copy, (Path(folder),)) as pool:
        failing = pool.apply(run_tests, ([test for module in modules for test in MODULES[module]],))
        assert not failing, f"{failing} fails without a mutant"
        for outcome in pool.imap_unordered(kill, chosen):
            print(outcome.format_line(), flush=True)
            killed += bool(outcome.killer)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed >= 0.95 * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

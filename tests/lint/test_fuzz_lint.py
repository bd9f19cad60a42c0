"""Damaged launches through all of lint: findings, or one clear line, and never another exception."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from attncheck.core.errors import AttncheckError
from attncheck.core.launch import Source
from attncheck.lint import run
from tests.lint import launches

ROUNDS = 130  # the readers alone are given 5,000 in test_fuzz_launch; 6,000 through all of lint were run by hand
PIECES = (
    "$(x)",
    "${",
    "'",
    '"',
    "\\\n",
    " -1",
    "=",
    "==",
    "--",
    " true",
    ": ",
    "[1, 2",
    "{a: b}",
    "\t",
    "null",
    "1e9",
    "\0",
)
VERSIONS = ("", "0.5.0", "0.9.9", "0.11.2", "0.12.2", "1.16.0", "4.6.0", "99.0")


def damage(chance: random.Random, text: str) -> str:
    """Return a text with a few pieces cut out, doubled, swapped or inserted."""
    for _ in range(chance.randrange(1, 5)):
        start, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        end = min(end, start + 40)
        kind = chance.randrange(4)
        if kind == 0:
            text = text[:start] + text[end:]
        elif kind == 1:
            text = text[:end] + text[start:]
        elif kind == 2:
            text = text[:start] + chance.choice(PIECES) + text[start:]
        else:
            lines = text.split("\n")
            chance.shuffle(lines)
            text = "\n".join(lines)
    return text


def run_lint(source: Source, version: str) -> str:
    """Return how lint ended: "report", or the class of its error, which is one line."""
    snapshot = random.Random(source.text).choice(list(launches.make_environments().values()))
    try:
        report = run.run(snapshot, run.Request((source,), version=version), launches.read_model, launches.read_no_file)
    except AttncheckError as error:
        return _check_error(error)
    assert not [finding for finding in report.findings if finding.code.startswith("ATN9")], report.findings
    return "report"


def _check_error(error: AttncheckError) -> str:
    assert "\n" not in str(error) and str(error)
    return type(error).__name__


def test_no_damage_is_a_traceback() -> None:
    chance = random.Random(6)
    paths = list(launches.iter_corpus())
    outcomes = set()
    for number in range(ROUNDS):
        source = launches.read_launch(paths[number % len(paths)])
        start = time.process_time()
        outcomes.add(run_lint(replace(source, text=damage(chance, source.text)), version=chance.choice(VERSIONS)))
        assert time.process_time() - start < 5
    assert "report" in outcomes

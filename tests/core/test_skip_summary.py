"""A run of the tests ends with what was skipped, by reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
@pytest.mark.parametrize("number", range(3))
def test_one(number):
    pytest.skip("uv is not installed")
@pytest.mark.skipif(True, reason="no GPU here")
def test_two(): ...
def test_three(): ...
"""


def test_skips_are_summed_up_by_reason(tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "none.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        [*command, "-c", str(tmp_path / "none.ini"), "--rootdir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "= 4 tests were skipped =" in done.stdout
    assert re.findall(r"^ +(\d+) (.+)$", done.stdout, re.MULTILINE) == [
        ("3", "uv is not installed"),
        ("1", "no GPU here"),
    ]

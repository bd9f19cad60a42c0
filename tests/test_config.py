"""Configuration: read from either file, and every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.config import Config, load
from attncheck.errors import BadUsage


def test_nothing_configured(tmp_path: Path) -> None:
    assert load(tmp_path) == Config()


def test_pyproject_of_a_parent_folder(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.attncheck]\nprofile = "ring"\nignore = ["ATN2"]\ntimeout = 5\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert load(below) == Config(profile="ring", ignore=("ATN2",), timeout=5.0)


def test_own_file_wins_over_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.attncheck]\nprofile = "ring"\n')
    (tmp_path / "attncheck.toml").write_text('fail-on = "warning"\n')
    assert load(tmp_path) == Config(fail_on="warning")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("profil = 'ring'", "unknown key 'profil'; did you mean 'profile'?"),
        ("xyzzy = 1", "known keys: profile"),
        ("profile = 'fast'", "profile: 'fast' is not one of auto, flash"),
        ("fail-on = 3", "fail-on: 3 is not one of"),
        ("select = 'ATN1'", "select: expected an array"),
        ("timeout = true", "timeout: True is not a number of seconds"),
        ("timeout = -1", "timeout: -1 is not a number of seconds"),
        ("profile = ", "cannot read attncheck.toml"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "attncheck.toml").write_text(text)
    with pytest.raises(BadUsage) as caught:
        load(tmp_path)
    assert says in str(caught.value)

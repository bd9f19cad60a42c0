"""Which releases `make names` adds to a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.names import update
from tools.names.update import NAMES, add_new_releases


@pytest.mark.parametrize(
    ("known", "available", "one_a_minor", "versions"),
    [
        (["0.9.0", "0.9.1"], ["0.9.1", "0.9.0", "0.8.0"], False, ["0.9.0", "0.9.1"]),
        (["0.9.0"], ["0.9.2", "0.9.1", "0.10.0", "0.9.0"], False, ["0.9.0", "0.9.1", "0.9.2", "0.10.0"]),
        (["1.0.2", "1.1.0"], ["1.1.2", "1.1.1", "1.2.0", "1.2.1", "1.0.9"], True, ["1.0.2", "1.1.2", "1.2.1"]),
        (["0.3.0.post1"], ["0.4.0rc1", "0.3.0.post2"], False, ["0.3.0.post1", "0.3.0.post2"]),
        (["0.2"], ["0.2", "0.3"], False, ["0.2", "0.3"]),
    ],
    ids=["nothing new", "every release", "the last patch of a minor", "no release candidate", "spelt as before"],
)
def test_releases_that_are_added(
    known: list[str], available: list[str], one_a_minor: bool, versions: list[str]
) -> None:
    assert add_new_releases(known, available, one_a_minor) == versions


@pytest.mark.parametrize("table", sorted(path.stem for path in NAMES.glob("*.json")))
def test_a_table_without_a_new_release_is_left(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table's own versions follow the rule by which they are chosen, and each has its generator."""
    known = json.loads((NAMES / f"{table}.json").read_text(encoding="utf-8"))["versions"]
    assert (Path(update.__file__).parent / f"{table}.py").exists()
    monkeypatch.setattr(update, "list_available", lambda package: known)
    monkeypatch.setattr(update, "download_releases", None)
    update.update_table(table)

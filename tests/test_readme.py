"""The README tells the truth: its rule table, its file tree, its commands."""

from __future__ import annotations

import re
from pathlib import Path

from attncheck.doctor import rule_list
from attncheck.doctor.engine import all_rules
from tests.conftest import Run

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    return README.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def test_the_rule_table_is_the_one_of_the_rules() -> None:
    assert block("rules") == rule_list.as_markdown(all_rules()[0]), "run: python -m tests.update_readme"


def test_the_file_tree_names_what_is_there() -> None:
    tree = block("tree")
    for path in sorted((ROOT / "attncheck").iterdir()):
        if not path.name.startswith((".", "__")):
            assert path.name in tree, f"{path.name} is not in the README's tree"
    for name in re.findall(r"[a-z_]+\.py|[a-z_]+/", tree):
        found = [path for path in ROOT.rglob(name.rstrip("/")) if ".venv" not in str(path)]
        assert found, f"the README's tree names {name}, which does not exist"


def test_every_command_is_told(attncheck: Run) -> None:
    listed = attncheck("--help").stdout.partition("Commands:")[2].strip().splitlines()
    for line in listed:
        assert f"attncheck {line.split()[0]}" in README


def test_there_are_at_least_seventy_rules() -> None:
    assert sum(not rule.by_engine for rule in all_rules()[0]) >= 70

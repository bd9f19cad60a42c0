"""What programs read of this repository: llms.txt and the skill name commands, options, fields and pages that exist."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from ruamel.yaml import YAML

from attncheck.core.findings import Fix
from attncheck.report.document import FIELDS
from tests.snippets import ROOT, SKILL, find_argument_error

LLMS = ROOT / "llms.txt"
README = (ROOT / "README.md").read_text(encoding="utf-8")
HEAD, TEXT = SKILL.read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n", 1)
COMMAND = re.compile(r"`attncheck ([^`]+)`")


def read_exit_codes(page: str) -> set[str]:
    return set(re.findall(r"^\| (\d+) \| ", page.partition("Exit codes\n")[2].partition("\n#")[0], re.MULTILINE))


def test_the_skill_has_the_head_that_agents_read() -> None:
    """https://agentskills.io/specification: the name is the folder's."""
    head = YAML(typ="safe").load(HEAD)
    assert head.keys() <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert head["name"] == SKILL.parent.name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"])
    assert 100 < len(head["description"]) <= 1024 and len(head["compatibility"]) <= 500
    assert len(TEXT.splitlines()) < 200


def test_the_skill_knows_every_exit_code() -> None:
    assert read_exit_codes(TEXT) == read_exit_codes(README) >= {"0", "1", "2", "3", "130"}


def test_the_skill_knows_every_kind_of_fix() -> None:
    part = TEXT.partition("## Apply a fix")[2].partition("\n## ")[0]
    words = set(re.findall(r"`([a-z]+)`", part))
    assert set(get_args(get_type_hints(Fix)["kind"])) <= words
    assert words - set(get_args(get_type_hints(Fix)["kind"])) <= {
        *(field.name for field in fields(Fix)),
        *FIELDS,
        "unsafe",
        "repair",
        "fixes",
    }


@pytest.mark.parametrize("page", [SKILL, LLMS], ids=lambda page: page.name)
def test_each_command_that_is_named_can_be_run(page: object) -> None:
    commands = COMMAND.findall(TEXT if page == SKILL else LLMS.read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        assert find_argument_error(shlex.split(command)) == [], command


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert find_argument_error(["doctor", "--lane-static"])


def test_llms_txt_is_as_its_readers_want_it() -> None:
    """https://llmstxt.org: a title, a summary as a quotation, then sections that are lists of links."""
    title, _, rest = LLMS.read_text(encoding="utf-8").partition("\n")
    assert title == "# attncheck" and rest.startswith("\n> ")
    sections = re.split(r"^## ", rest, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == ["Docs", "Optional"]
    links = []
    for section in sections:
        lines = section.strip().splitlines()[2:]
        links += [match[1] for line in lines if (match := re.fullmatch(r"- \[[^]]+\]\(([^)]+)\)(: .+)?", line))]
        assert len(lines) == sum(line.startswith("- [") for line in lines)
    assert all((ROOT / link).is_file() for link in links)
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")}
    assert pages <= set(links), "a page that is missing"

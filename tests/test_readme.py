"""The README and the pages of docs/ tell the truth: the table of rules, the commands, the links, the rooms."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from attncheck import __version__
from attncheck.cli.app import command_names
from attncheck.doctor.engine import all_rules
from attncheck.doctor.knowledge.clashes import load_clashes
from attncheck.doctor.rule_list import rule_title
from tests.snippets import find_argument_error

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RULES = ROOT / "docs" / "rules.md"
CLASHES = ROOT / "docs" / "settings-that-clash.md"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))


def generated_block(page: Path, name: str) -> str:
    """Return what is between the marks of a part that is generated."""
    return page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def render_rule_table() -> str:
    rows = ["| code | severity | rule | defect |", "|---|---|---|---|"]
    rows += [
        f'| <a id="{rule.code.lower()}"></a>{rule.code} | {rule.severity} | `{rule.name}` | {rule_title(rule)} |'
        for rule in all_rules()[0]
    ]
    return "\n".join(rows) + "\n"


def test_the_rule_table_is_the_one_of_the_rules() -> None:
    assert generated_block(RULES, "rules") == render_rule_table(), "run: python -m tests.update_docs"


def render_clash_table() -> str:
    rows = ["| framework | releases | what goes wrong | read in |", "|---|---|---|---|"]
    for clash in load_clashes():
        message = re.sub(r"\{(\w+)\}", r"`\1`", clash.message)
        end = f" until {clash.until}" if clash.until else " to the last one read"
        releases = f"{clash.package} {clash.since}".strip() + end
        cells = (clash.framework.replace("|", ", "), releases, message, clash.source)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def test_the_table_of_clashes_is_the_one_of_lint() -> None:
    assert generated_block(CLASHES, "clashes") == render_clash_table(), "run: python -m tests.update_docs"


def test_the_titles_that_were_read_are_listed_with_the_releases_that_fix_them() -> None:
    """At least 150 of them; a title without a release is one of a change that no release has."""
    text = CLASHES.read_text(encoding="utf-8")
    titles = re.findall(r"^\| ([^|]*) \| (?:\[#\d+\]\(https://github\.com/|\w{9} \|)", text, re.MULTILINE)
    assert len(titles) >= 150
    assert sum(bool(re.match(r"\d+\.\d+", fixed)) for fixed in titles) > 0.95 * len(titles)


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 250


@pytest.mark.parametrize("name", command_names())
def test_every_command_is_in_the_table(name: str) -> None:
    assert re.search(rf"^\| `attncheck {name}\b", README, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_are_named_are_there(page: Path) -> None:
    for path in re.findall(r"`((?:attncheck|tests|tools|benchmarks|docs)/[\w./-]*)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_the_rooms_are_the_ones_that_are_told() -> None:
    rooms = {path.parent.name for path in (ROOT / "attncheck").glob("*/__init__.py")}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert rooms == set(re.findall(r"^  (\w+)/ ", text.partition("attncheck/\n")[2].partition("```")[0], re.MULTILINE))


def test_there_are_at_least_seventy_rules() -> None:
    assert sum(not rule.by_engine for rule in all_rules()[0]) >= 70


def test_one_version_stands_everywhere() -> None:
    """Snippets name the tag of this version, never a branch; the changelog has it, released or in preparation."""
    pages = (*PAGES, ROOT / "action.yml", *sorted((ROOT / ".github" / "workflows").glob("*.yml")))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = re.findall(r"^ *rev: *(\S+)|attncheck/attncheck@([\w.-]+)|\battncheck==([\w.]+)", text, re.MULTILINE)
    versions = [next(filter(None, groups)) for groups in named]
    assert len(versions) >= 4 and {version.removeprefix("v") for version in versions} == {__version__}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[\w.]*)\]", changelog, re.MULTILINE)
    assert f"The version in preparation is {__version__};" in changelog or released[:1] == [__version__]


def test_nothing_promises_a_package_index_that_does_not_have_it() -> None:
    for page in PAGES:
        assert not re.search(
            r"(pip|pipx|uv tool) install attncheck\b|uvx attncheck\b", page.read_text(encoding="utf-8")
        )


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_codes_and_commands_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    codes = {rule.code for rule in all_rules()[0]}
    assert set(re.findall(r"\bATN\d{3}\b", text)) <= codes
    if page.stem in ("quickstart", "troubleshooting"):
        commands = re.findall(r"`attncheck ([^`]+)`", text)
        assert commands and not [error for command in commands for error in find_argument_error(shlex.split(command))]


def test_a_role_of_the_quickstart_is_at_most_sixty_lines() -> None:
    roles = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(roles) == 3 and all(len(role.splitlines()) <= 60 for role in roles)
    assert all(f"](walks/{path.name})" in "".join(roles) for path in (ROOT / "docs" / "walks").iterdir())

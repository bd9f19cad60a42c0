"""Wording that readers stumble over stays out: its count in a file may only fall (`python -m tests.update_docs`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COUNTS = Path(__file__).parent / "data" / "words.json"
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt")
# What to write instead is the comment.
PATTERNS = (
    r"(?<![`\"])\bmend(s|ed|ing)?\b",  # fix; quoted they are fields of schema 2
    r"\bbeside\b",  # next to, with, alongside
    r"\banew\b",  # again
    r"\bstands? (in )?for\b",  # represents, replaces
    r"\bheld against\b",  # compared with
    r"\bgravest\b",  # most severe
    r"\b(in silence|without a word|in vain|at hand|all the same)\b",  # silently, to no effect, available, anyway
    r"\b(is|are|was|were) told\b|\btold (apart|by|with)\b",  # is reported, distinguished
    r"\b(is|are) said\b|, which is said\b",  # is reported
    r"\basked for\b",  # requested
    r"\bnothing found\b",  # no problems
    r"\bfrom \d[\w.]* on\b",  # since
    r"\b(lay|lays|laid) \w+ down\b",  # reinstall
    r'"" where\b|^ *"""(Return|Yield) [^\n]* where (it|there|no|none|nothing)\b',  # if
    r"\bover ranks\b",  # across ranks
    r"\band (its|their) kin\b",  # and similar
    r"\bof (its|their|the user's|one's|your) own\b(?! accord)",  # its own …
    r"\bshall\b",  # should
)
MATCHER = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS), re.IGNORECASE | re.MULTILINE)


def list_texts() -> Iterator[Path]:
    """Yield every file whose words a user or a contributor reads."""
    yield from (ROOT / page for page in PAGES)
    for folder in ("attncheck", "docs"):
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md"))


def count_words() -> dict[str, int]:
    """Return how often such wording is in each file that has any."""
    counts = {
        str(path.relative_to(ROOT)): len(MATCHER.findall(path.read_text(encoding="utf-8"))) for path in list_texts()
    }
    return {path: count for path, count in counts.items() if count}


def test_the_wording_gets_no_worse() -> None:
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    worse = {path: count for path, count in count_words().items() if count > allowed.get(path, 0)}
    assert not worse, f"see PATTERNS for what to write instead: {worse}"


@pytest.mark.parametrize(
    "text",
    [
        "a small model stands for it",
        "the file beside config.json",
        '"""Return the name, "" where it is not known."""',
        "packages of their own",
        "from 5.13 on",
        "reading is asked for",
    ],
)
def test_a_pattern_is_noticed(text: str) -> None:
    assert MATCHER.search(text)


def test_plain_words_pass() -> None:
    assert not MATCHER.search("Return the name, or an empty text if it is not known. The fix is next to it.")

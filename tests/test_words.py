"""Wording that readers stumble over stays out: its count in a file may only fall (`python -m tests.update_docs`)."""

from __future__ import annotations

import ast
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
    r"\b(is|are|that is) no multiple of\b",  # is not a multiple of
    r"\bthat they are of\b",  # its, their
    r"\b(gives?|gave) no answer\b",  # does not answer, gives no result
    r"\bonly running (it|the launch)? ?(can |would )?(shows|tells?)\b",  # is known only at run time
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


def find_lost_texts(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each text that is a statement of its own, and no docstring: the second half of a sentence."""
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            statements = block if isinstance(block, list) else []
            documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            for place, statement in enumerate(statements):
                value = statement.value if isinstance(statement, ast.Expr) else None
                is_text = isinstance(value, ast.JoinedStr) or (
                    isinstance(value, ast.Constant) and isinstance(value.value, str)
                )
                if is_text and not (documented and place == 0):
                    yield statement.lineno


def test_no_half_of_a_sentence_is_lost() -> None:
    assert list(find_lost_texts(ast.parse('def f():\n    """Doc."""\n    yield "a "\n    "b"\n'))) == [4]
    sources = [path for path in list_texts() if path.suffix == ".py"]
    lost = [(path.name, line) for path in sources for line in find_lost_texts(ast.parse(path.read_text("utf-8")))]
    assert not lost, "put both halves into parentheses"


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

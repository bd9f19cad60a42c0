"""The words and signs of bash's grammar, and what is open while a script is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from attncheck.lint.shell.conditions import Branches
from attncheck.lint.shell.text import Runs

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\s]*\])?(\+?)=")
REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(?:&>>?|<<<|<>|>>|>\||[<>]&?)|&>>?")
SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|\n]")
CALLABLE = re.compile(r"\(\s*\)")
BODY = re.compile(r"\s*\{(?=\s)")
NAMED = re.compile(r"\s+([^\s(){}]+)\s*(?:\(\s*\))?")
TEST_END = re.compile(r"\s\]\](?=[\s;&|)]|$)")
CONDITION, LOOP, FUNCTION = "a condition", "a loop", "function"
OPENING = {"if": CONDITION, "case": CONDITION, "while": LOOP, "until": LOOP, "for": LOOP, "select": LOOP, "{": ""}
CLOSING = {"fi", "done", "esac", "}"}
TURNS = {"then", "else", "elif"}
SKIPPED = {"do", "coproc"}
KEYWORDS = {*OPENING, *CLOSING, *TURNS, *SKIPPED, "!", "[[", "function"}


@dataclass
class Open:
    """A compound command that is being read."""

    kind: str  # CONDITION, LOOP, FUNCTION, "" for a group
    keyword: str
    at: int  # where its keyword stands, or the body of the function begins
    name: str = ""
    branches: Branches | None = None


@dataclass
class Gathered:
    """The simple command that is being read: raw words, and what its heredoc brought."""

    words: list[tuple[int, int]] = field(default_factory=list)
    arrays: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # raw words of `NAME=( … )`
    heredoc: Runs | None = None
    negated: bool = False

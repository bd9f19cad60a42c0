"""The tokens of bash's grammar, and the commands that are open while a script is parsed."""

import re
from dataclasses import dataclass, field

from attncheck.lint.shell.conditions import Branches
from attncheck.lint.shell.text import Segments

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\s]*\])?(\+?)=")
REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(?:&>>?|<<<|<>|>>|>\||[<>]&?)|&>>?")
OUTPUT_OPERATORS = {">", ">>", ">|", "1>", "1>>", "&>", "&>>"}
SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|\n]")
EMPTY_PARENTHESES = re.compile(r"\(\s*\)")
FUNCTION_BODY = re.compile(r"\s*\{(?=\s)")
FUNCTION_NAME = re.compile(r"\s+([^\s(){}]+)\s*(?:\(\s*\))?")
TEST_END = re.compile(r"\s\]\](?=[\s;&|)]|$)")
CONDITION, LOOP, FUNCTION = "a condition", "a loop", "function"
OPENING_KEYWORDS = {
    "if": CONDITION,
    "case": CONDITION,
    "while": LOOP,
    "until": LOOP,
    "for": LOOP,
    "select": LOOP,
    "{": "",
}
CLOSING_KEYWORDS = {"fi": ("if",), "done": ("while", "until", "for", "select"), "esac": ("case",), "}": ("{",)}
BRANCH_KEYWORDS = {"then", "else", "elif"}
IGNORED_KEYWORDS = {"do", "coproc"}
KEYWORDS = {*OPENING_KEYWORDS, *CLOSING_KEYWORDS, *BRANCH_KEYWORDS, *IGNORED_KEYWORDS, "!", "[[", "function"}


@dataclass
class CompoundCommand:
    """A compound command (bash(1)) that is being read, or the body of a function."""

    kind: str  # CONDITION, LOOP, FUNCTION, "" for a group
    keyword: str
    offset: int  # offset of its keyword, or of the start of the function's body
    name: str = ""
    branches: Branches | None = None
    end: int = -1  # offset at which it is closed; -1: it is open


@dataclass
class SimpleCommand:
    """The simple command that is being read: the spans of its raw words, and its here-document."""

    words: list[tuple[int, int]] = field(default_factory=list)
    arrays: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # raw words of `NAME=( … )`
    stdin: Segments | None = None  # the expanded here-document or here-string
    stdin_start: int = -1  # offset of its body
    output: tuple[int, int] | None = None  # the raw word of the file after `>` or `>>`
    appends: bool = False
    is_negated: bool = False

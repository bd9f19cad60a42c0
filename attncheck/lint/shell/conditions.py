"""Which branches of a script's conditions are taken, as far as known values decide it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

INTEGER = re.compile(r"[+-]?\d{1,18}")
FEWEST = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
PATTERN = frozenset("*?[")


@dataclass
class Branches:
    """An `if` that is being read: what its tests said, and whether the branch that is being read is taken."""

    taken: bool | None = True  # None: only running tells
    testing: bool = True
    tests: list[bool | None] = field(default_factory=list)
    settled: bool = False  # an earlier branch is taken
    undecided: bool = False  # an earlier branch may be

    def turn(self, keyword: str) -> None:
        """Go on to `then`, `elif` or `else`."""
        if keyword == "then":
            said = self.tests[-1] if self.tests and None not in self.tests else None
            self.testing = False
            self.taken = False if self.settled else None if self.undecided and said else said
            self.settled, self.undecided = self.settled or self.taken is True, self.undecided or said is None
        elif keyword == "elif":
            self.testing, self.tests, self.taken = True, [], not self.settled
        else:
            self.taken = False if self.settled else None if self.undecided else True


@dataclass
class Guard:
    """What a test says of the command behind it: `[ … ] && this || that`."""

    reached: bool | None = True  # None: only running tells
    test: bool | None = None  # what the last command said, where it was a test
    tested: bool = False  # it was
    chained: bool = False  # a test stands before in this list

    def turn(self, separator: str) -> None:
        """Go on behind a separator."""
        if separator not in ("&&", "||"):
            self.reached, self.chained = True, False
        elif self.tested:
            wanted = self.test if separator == "&&" or self.test is None else not self.test
            self.reached, self.chained = wanted, True
        elif self.chained and separator == "||":
            self.reached = None if self.reached is None else not self.reached
        self.tested = False


def truth(words: Sequence[tuple[str, bool]], negated: bool = False) -> bool | None:
    """Return what `[ … ]`, `[[ … ]]`, `test …`, `true` or `false` says, None where only running tells.

    Each word is its text and whether that is known.
    """
    said = _said([text for text, _ in words], [known for _, known in words])
    return said if said is None else said != negated


def _said(texts: list[str], known: list[bool]) -> bool | None:
    name = texts[0] if texts else ""
    if name in ("true", "false", ":") and len(texts) == 1:
        return name != "false"
    if name not in ("[", "[[", "test"):
        return None
    closing = {"[": ["]"], "[[": ["]]"]}.get(name, [])
    if closing and texts[-1:] != closing:
        return None
    end = len(texts) - len(closing)
    inner, sure = texts[1:end], known[1:end]
    if inner[:1] == ["!"] and len(inner) > 1:
        said = _expression(inner[1:], sure[1:], name == "[[")
        return None if said is None else not said
    return _expression(inner, sure, name == "[[")


def _expression(words: list[str], known: list[bool], patterns: bool) -> bool | None:
    if not all(known):
        return None
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) == 1:
        return words[0] != ""
    if len(words) != 3:
        return None
    left, operator, right = words
    if operator in ("=", "==", "!="):
        return None if patterns and PATTERN & set(right) else (left == right) == (operator != "!=")
    if operator in FEWEST and INTEGER.fullmatch(left) and INTEGER.fullmatch(right):
        return (int(left) > int(right)) - (int(left) < int(right)) in FEWEST[operator]
    return None

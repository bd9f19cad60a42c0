"""Decides which branches of a script's conditions are taken, if known values decide it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

INTEGER = re.compile(r"[+-]?\d{1,18}")
INTEGER_COMPARISONS = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
PATTERN_CHARACTERS = frozenset("*?[")
QUOTED = re.compile(r"'([^']*)'|\"([^\"$`\\\\]*)\"")
UNREADABLE = re.compile(r"[$`\\\\\"'(]|\[[:^]")  # in a pattern: an expansion, mixed quotes, bash's own classes


@dataclass
class Branches:
    """The state of an `if` or a `case` that is being read: its tests, and whether the current branch is taken."""

    is_taken: bool | None = True  # None: known only at run time
    in_condition: bool = True
    test_results: list[bool | None] = field(default_factory=list)
    earlier_taken: bool = False  # an earlier branch is certainly taken
    earlier_undecided: bool = False  # whether an earlier branch is taken is known only at run time
    number: int = 0  # number of the current branch
    required_names: list[str] = field(default_factory=list)  # from `if [ -z "$NAME" ]`, until the first `elif`/`else`
    subject: str | None = None  # the word of a `case`; None: known only at run time
    patterns: list[str] = field(default_factory=list)  # of the branch of a `case` whose `)` is not reached yet

    def enter_branch(self, keyword: str) -> None:
        """Enter the part after `then`, `elif` or `else`."""
        self.number += 1
        if keyword == "then":
            self._take(self.test_results[-1] if self.test_results and None not in self.test_results else None)
            self.in_condition = False
        elif keyword == "elif":
            self.in_condition, self.test_results, self.is_taken = True, [], not self.earlier_taken
        else:
            self.is_taken = False if self.earlier_taken else None if self.earlier_undecided else True
        if keyword != "then":
            self.required_names = []

    def enter_pattern(self) -> None:
        """Enter the branch of a `case` whose patterns were read."""
        results = [matches_pattern(self.subject, pattern) for pattern in self.patterns]
        self.patterns = []
        self._take(True if True in results else None if None in results else False)

    def leave_pattern(self, separator: str) -> None:
        """Leave a branch of a `case`; after `;&` and `;;&` the next one may be taken too."""
        self.number += 1
        if separator != ";;":
            self.earlier_taken, self.earlier_undecided, self.subject = False, True, None

    def _take(self, result: bool | None) -> None:
        self.is_taken = False if self.earlier_taken else None if self.earlier_undecided and result else result
        self.earlier_taken = self.earlier_taken or self.is_taken is True
        self.earlier_undecided = self.earlier_undecided or result is None


@dataclass
class AndOrList:
    """The state of a list such as `[ … ] && this || that`: whether its next command is reached."""

    is_reached: bool | None = True  # None: known only at run time
    test_result: bool | None = None  # result of the last command, if it was a test
    last_was_test: bool = False
    has_test: bool = False  # a test comes before the command in this list

    def pass_separator(self, separator: str) -> None:
        """Move to the command after a separator."""
        if separator not in ("&&", "||"):
            self.is_reached, self.has_test = True, False
        elif self.last_was_test:
            is_reached = self.test_result if separator == "&&" or self.test_result is None else not self.test_result
            self.is_reached, self.has_test = is_reached, True
        elif self.has_test and separator == "||":
            self.is_reached = None if self.is_reached is None else not self.is_reached
        self.last_was_test = False


def matches_pattern(subject: str | None, pattern: str) -> bool | None:
    """Return whether a raw pattern of a `case` matches its word; None if it is known only at run time."""
    if subject is None:
        return None
    quoted = QUOTED.fullmatch(pattern)
    if quoted:
        return subject == (quoted[1] or quoted[2] or "")
    return None if UNREADABLE.search(pattern) else fnmatchcase(subject, pattern)


def evaluate_test(fields: Sequence[tuple[str, bool]], negated: bool = False) -> bool | None:
    """Return the result of `[ … ]`, `[[ … ]]`, `test …`, `true` or `false`; None if it is known only at run time.

    Each field is its text and whether that is known.
    """
    result = _evaluate_words([text for text, _ in fields], [known for _, known in fields])
    return result if result is None else result != negated


def _evaluate_words(words: list[str], known: list[bool]) -> bool | None:
    name = words[0] if words else ""
    if name in ("true", "false", ":") and len(words) == 1:
        return name != "false"
    if name not in ("[", "[[", "test"):
        return None
    closing = {"[": ["]"], "[[": ["]]"]}.get(name, [])
    if closing and words[-1:] != closing:
        return None
    end = len(words) - len(closing)
    inner, inner_known = words[1:end], known[1:end]
    if inner[:1] == ["!"] and len(inner) > 1:
        result = _evaluate_expression(inner[1:], inner_known[1:], name == "[[")
        return None if result is None else not result
    return _evaluate_expression(inner, inner_known, name == "[[")


def _evaluate_expression(words: list[str], known: list[bool], patterns: bool) -> bool | None:
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
        return None if patterns and PATTERN_CHARACTERS & set(right) else (left == right) == (operator != "!=")
    if operator in INTEGER_COMPARISONS and INTEGER.fullmatch(left) and INTEGER.fullmatch(right):
        return (int(left) > int(right)) - (int(left) < int(right)) in INTEGER_COMPARISONS[operator]
    return None

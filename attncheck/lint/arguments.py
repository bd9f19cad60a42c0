"""Reads the arguments of a program: options as argparse takes them, overrides as Hydra does.

What argparse takes for an option: Python 3.13 Lib/argparse.py `_parse_optional`, `_negative_number_matcher`. The
forms of an override: hydra-core 1.3.2 grammar/OverrideParser.g4; Hydra's own options: _internal/utils.py
(`get_args_parser`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from attncheck.core.launch import NOWHERE, Setting, Source, Span, Word

NEGATIVE = re.compile(r"-\d+|-\d*\.\d+(?:[eE][-+]?\d+)?|-\d+[eE][-+]?\d+")
OVERRIDE = re.compile(r"((?:\+\+|\+|~)?[A-Za-z_$][\w.$@/:-]*)(?:=(.*))?", re.DOTALL)
HYDRA_VALUED = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--package", "-p", "--cfg", "-c")
SEPARATION = re.compile(r"(?:[ \t]|\\?\r?\n)+|=")


def is_option(text: str) -> bool:
    """Say whether argparse takes a word for an option: not "-", not a negative number, not text with a blank in it."""
    return len(text) > 1 and text[0] == "-" and not NEGATIVE.fullmatch(text) and " " not in text.partition("=")[0]


def options(words: Sequence[Word], takes: Callable[[str], str], source: Source | None = None) -> tuple[Setting, ...]:
    """Return the options in `words`, in their order, with their values joined by blanks.

    `takes(name)` says what an option takes: "none", "one", "many" or "optional". A negative number is a value, and
    "--" ends the options. With `source`, an option and its values that stand on several lines have a span too.
    """
    found: list[Setting] = []
    at = 0
    while at < len(words) and words[at].text != "--":
        word = words[at]
        at += 1
        if not is_option(word.text):
            continue
        name, equals, text = word.text.partition("=")
        if equals:
            found.append(Setting(name, text, word.location, word.span, _behind(word, name, source), word.known))
            continue
        end = at
        most = {"none": 0, "one": 1, "optional": 1}.get(takes(name), len(words))
        while end < len(words) and end - at < most and not is_option(words[end].text):
            end += 1
        found.append(_option(word, words[at:end], source))
        at = end
    return tuple(found)


def _option(word: Word, values: Sequence[Word], source: Source | None) -> Setting:
    text = " ".join(one.text for one in values)
    known = word.known and all(one.known for one in values)
    span, value_span = _joined([word, *values], source), _joined(values, source)
    return Setting(word.text, text, word.location, span, value_span, known)


def positionals(words: Sequence[Word], takes: Callable[[str], str]) -> tuple[Word, ...]:
    """Return the words that are neither options nor their values."""
    found: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--":
            return (*found, *words[at:])
        if not is_option(word.text):
            found.append(word)
        elif "=" not in word.text:
            most = {"none": 0, "one": 1, "optional": 1}.get(takes(word.text), len(words))
            end = at
            while end < len(words) and end - at < most and not is_option(words[end].text):
                end += 1
            at = end
    return tuple(found)


def overrides(words: Sequence[Word], source: Source | None = None) -> tuple[Setting, ...]:
    """Return Hydra's overrides in `words`: "key=value", "+key=value", "++key=value", "~key", "group@package=value".

    The name keeps its "+" or "~"; quotes around the whole value are taken off. Options ("--config-name x") are none.
    """
    found: list[Setting] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text.startswith("-"):
            at += word.text in HYDRA_VALUED
            continue
        parts = OVERRIDE.fullmatch(word.text)
        if parts is None or (parts[2] is None and not word.text.startswith("~")):
            continue
        value_span = _behind(word, parts[1], source) if parts[2] is not None else NOWHERE
        found.append(Setting(parts[1], _unquoted(parts[2] or ""), word.location, word.span, value_span, word.known))
    return tuple(found)


def _unquoted(text: str) -> str:
    """Return a value without the quotes of Hydra's own grammar."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]:
        return text[1:-1]
    return text


def _behind(word: Word, name: str, source: Source | None) -> Span:
    """Return where the value of "name=value" stands, `NOWHERE` where quotes are around the whole of it."""
    start, end = word.span
    if word.span == NOWHERE:
        return NOWHERE
    begin = start + len(name) + 1
    if source is not None:
        return (begin, end) if source.text[start:begin] == f"{name}=" else NOWHERE
    return (begin, end) if end - start == len(word.text) else NOWHERE


def _joined(words: Sequence[Word], source: Source | None) -> Span:
    """Return the span from the first word to the last, `NOWHERE` where anything but blanks stands between them."""
    if not words or any(word.span == NOWHERE for word in words):
        return NOWHERE
    for left, right in itertools.pairwise(words):
        if source is None:
            beside = right.span[0] - left.span[1] == 1
        else:
            beside = SEPARATION.fullmatch(source.text, left.span[1], max(right.span[0], left.span[1])) is not None
        if not beside:
            return NOWHERE
    return (words[0].span[0], words[-1].span[1])

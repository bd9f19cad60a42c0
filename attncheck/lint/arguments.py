"""Parses the arguments of a program: options as argparse does, overrides as Hydra does.

argparse's definition of an option: Python 3.13 Lib/argparse.py `_parse_optional`, `_negative_number_matcher`. The forms
of an override: hydra-core 1.3.2 grammar/OverrideParser.g4; Hydra's own options: _internal/utils.py (`get_args_parser`).
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from attncheck.core.launch import NOWHERE, Setting, Source, Span, Word
from attncheck.core.records import replace
from attncheck.lint.open_ends import MANY_WORDS

NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+(?:[eE][-+]?\d+)?|-\d+[eE][-+]?\d+")
OVERRIDE = re.compile(r"((?:\+\+|\+|~)?[A-Za-z_$][\w.$@/:-]*)(?:=(.*))?", re.DOTALL)
HYDRA_OPTIONS = (
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
    "--package",
    "-p",
    "--cfg",
    "-c",
)
SEPARATOR = re.compile(r"(?:[ \t]|\\?\r?\n)+|=")


def is_option(text: str) -> bool:
    """Return whether argparse parses a word as an option: not "-", a negative number or text with a space."""
    return (
        len(text) > 1 and text[0] == "-" and not NEGATIVE_NUMBER.fullmatch(text) and " " not in text.partition("=")[0]
    )


def parse_options(
    words: Sequence[Word], nargs: Callable[[str], str], source: Source | None = None
) -> tuple[Setting, ...]:
    """Return the options in `words`, in order, with their values joined by spaces.

    `nargs(name)` returns how many values an option takes: "none", "one", "many" or "optional". A negative number is a
    value, and "--" ends the options. An unknown array after a value is not part of it: it may hold options. With
    `source`, an option that spans several lines with its values has a span too.
    """
    settings: list[Setting] = []
    index = 0
    while index < len(words) and words[index].text != "--":
        word = words[index]
        index += 1
        if not is_option(word.text):
            continue
        name, equals, text = word.text.partition("=")
        if equals:
            value_span = _find_value_span(word, name, source)
            if not text and value_span == NOWHERE:  # the value is empty, not missing
                value_span = (word.span[1], word.span[1])
            settings.append(Setting(name, text, word.location, word.span, value_span, word.known))
            continue
        end = index
        max_values = {"none": 0, "one": 1, "optional": 1}.get(nargs(name), len(words))
        while end < len(words) and end - index < max_values and not is_option(words[end].text):
            if end > index and not words[end].known and MANY_WORDS.fullmatch(words[end].text):
                break
            end += 1
        settings.append(_make_setting(word, words[index:end], source))
        index = end
    return tuple(settings)


def iter_option_values(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Yield the possible options of a program whose parser is unknown, in order: each name with the word of its value.

    `--name=value` and `--name value` are treated alike; the word after a switch is also yielded as its value.
    """
    for index, word in enumerate(words):
        name, equals, text = word.text.partition("=")
        if name.startswith("-") and equals:
            yield name, replace(word, text=text)
        elif name.startswith("-") and index + 1 < len(words):
            yield name, words[index + 1]


def _make_setting(word: Word, values: Sequence[Word], source: Source | None) -> Setting:
    text = " ".join(value.text for value in values)
    known = word.known and all(value.known for value in values)
    span, value_span = _merge_spans([word, *values], source), _merge_spans(values, source)
    if values and not text and value_span == NOWHERE:  # the value is empty, not missing
        value_span = (word.span[1], word.span[1])
    return Setting(word.text, text, word.location, span, value_span, known)


def parse_overrides(words: Sequence[Word], source: Source | None = None) -> tuple[Setting, ...]:
    """Return Hydra's overrides in `words`: "key=value", "+key=value", "++key=value", "~key", "group@package=value".

    The name keeps its "+" or "~"; quotes around the whole value are stripped. Options ("--config-name x") are not
    included.
    """
    settings: list[Setting] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word.text.startswith("-"):
            index += word.text in HYDRA_OPTIONS
            continue
        parts = OVERRIDE.fullmatch(word.text)
        if parts is None or (parts[2] is None and not word.text.startswith("~")):
            continue
        value_span = _find_value_span(word, parts[1], source) if parts[2] is not None else NOWHERE
        settings.append(
            Setting(parts[1], _strip_quotes(parts[2] or ""), word.location, word.span, value_span, word.known)
        )
    return tuple(settings)


def _strip_quotes(text: str) -> str:
    """Return a value without quotes, by the rules of Hydra's grammar."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]:
        return text[1:-1]
    return text


def _find_value_span(word: Word, name: str, source: Source | None) -> Span:
    """Return the span of the value of "name=value"; `NOWHERE` if quotes enclose name and value."""
    start, end = word.span
    if word.span == NOWHERE:
        return NOWHERE
    value_start = start + len(name) + 1
    if source is not None:
        return (value_start, end) if source.text[start:value_start] == f"{name}=" else NOWHERE
    return (value_start, end) if end - start == len(word.text) else NOWHERE


def _merge_spans(words: Sequence[Word], source: Source | None) -> Span:
    """Return the span from the first word to the last; `NOWHERE` if anything but blanks is between them."""
    if not words or any(word.span == NOWHERE for word in words):
        return NOWHERE
    for left, right in itertools.pairwise(words):
        if source is None:
            adjacent = right.span[0] - left.span[1] == 1
        else:
            adjacent = SEPARATOR.fullmatch(source.text, left.span[1], max(right.span[0], left.span[1])) is not None
        if not adjacent:
            return NOWHERE
    return (words[0].span[0], words[-1].span[1])

"""Parsing shared by the launchers: the options before a script, and counts in them. Not a launcher itself."""

import itertools
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from attncheck.lint.launchers import NOWHERE, Absent, Fact, Known, Unreadable, Word

EVERY_GPU = "as many as the node has GPUs"  # the end of the reason if nothing limits the processes

VARIABLE = re.compile(r'\$(?:\w+|\{\w+\})|"?\$\{\w+\[@\]\}"?')
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
PROGRAM = re.compile(r".*\.py|(?:.*/)?python3?")
COUNT = re.compile(r"--(?:n?nodes|num|nproc|ntasks)|-[nN]$")


def split_names(text: str) -> frozenset[str]:
    """Return the option names in `text`, which are separated by spaces."""
    return frozenset(text.split())


def split_assignments(words: Sequence[Word]) -> tuple[dict[str, str], tuple[Word, ...]]:
    """Return the variables that the first words set for a command, and the command."""
    matches = list(itertools.takewhile(bool, (ASSIGNMENT.fullmatch(word.text) for word in words)))
    return {match[1]: match[2] for match in matches if match}, tuple(words[len(matches) :])


@dataclass(frozen=True)
class LeadingOptions:
    """The options before a script, and the words that follow them."""

    values: Mapping[str, Word] = field(default_factory=dict)  # by name; the last one counts, and a switch has no text
    rest: tuple[Word, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return the value of an option; "" if it is not set."""
        return self.values[name].text if name in self.values else ""


def parse_leading_options(
    words: Sequence[Word],
    value_options: AbstractSet[str],
    switches: AbstractSet[str],
    fold_hyphens: bool = False,
    allow_abbrev: bool = True,
) -> LeadingOptions:
    """Return the options at the start of `words`; they end at the first other word or at "--".

    A variable of unknown value holds options if a program follows, with only known options between them:
    `deepspeed ${args} train.py`, `accelerate launch "${ARGS[@]}" train.py`. They may set any count.

    With `fold_hyphens`, "--num-processes" and "--num_processes" are the same name. With `allow_abbrev`, an unambiguous
    prefix represents an option, as in argparse.
    """
    values: dict[str, Word] = {}
    notes: list[str] = []
    index, before_variable = 0, LeadingOptions({}, ())
    while index < len(words) and words[index].text not in ("-", "--"):
        if not words[index].known and VARIABLE.fullmatch(words[index].shell):
            before_variable = (
                before_variable
                if before_variable.rest
                else LeadingOptions({**values}, tuple(words[index:]), tuple(notes))
            )
            index += 1
            continue
        if not words[index].text.startswith("-"):
            break
        option, equals, value = words[index].text.partition("=")
        name = _match_option(option, value_options, switches, fold_hyphens, allow_abbrev)
        short_option = (
            option[:2] if name is None and not option.startswith("--") and option[:2] in value_options else ""
        )
        if short_option:  # "-N2"
            values[short_option] = replace(words[index], text=words[index].text[2:].removeprefix("="), span=NOWHERE)
        elif name is not None and name in value_options and not equals:
            index += 1
            values[name] = words[index] if index < len(words) else replace(words[index - 1], text="")
        else:
            if name is None:
                notes.append(f"{option} is not a known option of the launcher")
            values[name or option] = replace(words[index], text=value, span=NOWHERE)
        index += 1
    if before_variable.rest:
        rest = words[index : index + 1]
        if len(notes) > len(before_variable.notes) or not any(PROGRAM.fullmatch(w.text) and w.known for w in rest):
            return before_variable
        values = dict.fromkeys(filter(COUNT.match, value_options), before_variable.rest[0]) | values
    if index < len(words) and words[index].text == "--":
        index += 1
    return LeadingOptions(values, tuple(words[index:]), tuple(notes))


def _match_option(
    option: str, value_options: AbstractSet[str], switches: AbstractSet[str], fold_hyphens: bool, allow_abbrev: bool
) -> str | None:
    name = "--" + option[2:].replace("-", "_") if fold_hyphens and option.startswith("--") else option
    if name in value_options or name in switches:
        return name
    if not allow_abbrev:
        return None
    candidates = [
        candidate
        for candidate in (*value_options, *switches)
        if name.startswith("--") and len(name) > 4 and candidate.startswith(name)
    ]
    return candidates[0] if len(candidates) == 1 else None


def parse_count(word: Word | None, option: str, default: Fact[int]) -> Fact[int]:
    """Return the count in `word`, the value of `option`; `default` if the option is not set."""
    if word is None:
        return default
    if not word.known:
        return Unreadable(f"{option} is {word.text}, which is known only at run time")
    if word.text in ("gpu", "auto"):
        return Absent(f"{option} {word.text}: {EVERY_GPU}")
    if word.text.isascii() and word.text.isdecimal() and int(word.text[:9]) > 0 and len(word.text) < 9:
        return Known(int(word.text))
    return Unreadable(f"{option} is {word.text!r}, which is not a number")


def program_name(word: Word) -> str:
    """Return the name of a program without its folder."""
    return word.text.rsplit("/", 1)[-1]

"""What launchers' files share: the options in front of a script, and counts in them. No launcher itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.launch import NOWHERE, Word

EVERY_GPU = "as many as the node has GPUs"  # the end of the reason, where nothing limits the processes


def names(text: str) -> frozenset[str]:
    """Return the words of `text`: a table of options that can be read."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Front:
    """The options before a script, and what follows them."""

    values: Mapping[str, Word] = field(default_factory=dict)  # by name, the last one counts; a switch has no text
    rest: tuple[Word, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return the value of an option, "" where it is not written."""
        return self.values[name].text if name in self.values else ""


def front(
    words: Sequence[Word],
    valued: AbstractSet[str],
    switches: AbstractSet[str],
    underscores: bool = False,
    abbreviated: bool = True,
) -> Front:
    """Return the options with which `words` begin; the first word that is none ends them, and so does "--".

    With `underscores` "--num-processes" and "--num_processes" are one name. As argparse does, a beginning of a
    name that fits one option alone stands for it, unless not `abbreviated`.
    """
    values: dict[str, Word] = {}
    notes: list[str] = []
    at = 0
    while at < len(words) and words[at].text.startswith("-") and words[at].text not in ("-", "--"):
        written, equals, given = words[at].text.partition("=")
        name = _known(written, valued, switches, underscores, abbreviated)
        short = written[:2] if name is None and not written.startswith("--") and written[:2] in valued else ""
        if short:  # "-N2"
            values[short] = replace(words[at], text=words[at].text[2:].removeprefix("="), span=NOWHERE)
        elif name is not None and name in valued and not equals:
            at += 1
            values[name] = words[at] if at < len(words) else replace(words[at - 1], text="")
        else:
            if name is None:
                notes.append(f"{written} is no option known of the launcher")
            values[name or written] = replace(words[at], text=given, span=NOWHERE)
        at += 1
    if at < len(words) and words[at].text == "--":
        at += 1
    return Front(values, tuple(words[at:]), tuple(notes))


def _known(
    written: str, valued: AbstractSet[str], switches: AbstractSet[str], underscores: bool, abbreviated: bool
) -> str | None:
    name = "--" + written[2:].replace("-", "_") if underscores and written.startswith("--") else written
    if name in valued or name in switches:
        return name
    if not abbreviated:
        return None
    near = [one for one in (*valued, *switches) if name.startswith("--") and len(name) > 4 and one.startswith(name)]
    return near[0] if len(near) == 1 else None


def count(word: Word | None, what: str, otherwise: Fact[int]) -> Fact[int]:
    """Return the number that an option gives, `otherwise` where it is not written."""
    if word is None:
        return otherwise
    if not word.known:
        return Unreadable(f"{what} is {word.text}, which only running tells")
    if word.text in ("gpu", "auto"):
        return Absent(f"{what} {word.text}: {EVERY_GPU}")
    if word.text.isascii() and word.text.isdigit() and int(word.text[:9]) > 0 and len(word.text) < 9:
        return Known(int(word.text))
    return Unreadable(f"{what} is {word.text!r}, which is no count")


def base(word: Word) -> str:
    """Return a program's name without its folder."""
    return word.text.rsplit("/", 1)[-1]

"""The options that Hugging Face's HfArgumentParser makes of dataclasses, by release.

transformers 5.23.0 hf_argparser.py `_parse_dataclass_field`: `--a_b` and `--a-b` are one option; a bool that has a
default may stand without a value, one whose default is None may not; a bool that is True by default has `--no_a_b`
too; lists take several words; argparse takes a name's beginning where it fits one option alone.

Source: names/{trl,transformers,llamafactory}.json, made of released wheels by tests/lint/tools/names_*.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from attncheck.lint.fields.releases import release, versions
from attncheck.lint.names import table

NO = ("no_", "no-")
Span = tuple[str, str, "Option"]  # first release, last release


@dataclass(frozen=True)
class Option:
    """One option: `kind` is "bool", "bool?" (None by default: a value must follow), "int", "float", "str", "list"."""

    kind: str
    default: Any
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Named:
    """What a written option is: the field's whole name, "" where no release has it, and whether this release does."""

    name: str = ""
    here: bool = False
    negated: bool = False  # "--no_packing"
    ambiguous: tuple[str, ...] = ()  # the fields that it may be the beginning of


@cache
def at(package: str, version: str) -> str:
    """Return the release whose names stand for `version`: the newest read that is not newer, of its minor release.

    Of most minor releases one was read, the last: it stands for the earlier ones too.
    """
    try:
        asked = Version(version)
    except InvalidVersion:
        return versions(package)[-1]
    near = [each for each in versions(package) if Version(each).release[:2] == asked.release[:2]]
    older = [each for each in near if Version(each) <= asked]
    return older[-1] if older else near[0] if near else release(package, version)


@cache
def lifetimes(package: str, dataclass_name: str) -> Mapping[str, tuple[Span, ...]]:
    """Return field -> (first release, last release, option) of one dataclass."""
    rows = table(package)["classes"].get(dataclass_name, {})
    return {
        name: tuple(
            (first, last, Option(kind, default, tuple(map(str, choices[0] if choices else ()))))
            for first, last, kind, default, *choices in spans
        )
        for name, spans in rows.items()
    }


@dataclass(frozen=True)
class Names:
    """The options of one parser: those of the releases at hand, and those of any release."""

    here: Mapping[str, Option]
    ever: Mapping[str, tuple[str, Span]]  # field -> package, and its last span

    def option(self, name: str) -> Option | None:
        """Return a field's option in the releases at hand, else the last that it was."""
        if name in self.here:
            return self.here[name]
        return self.ever[name][1][2] if name in self.ever else None

    def resolved(self, written: str) -> Named:
        """Return what an option is as it was written, with its dashes."""
        text = written.removeprefix("--")
        for known in (self.here, {name: span[1][2] for name, span in self.ever.items()}):
            found = _exact(text, known) or _begun(text, known)
            if found is not None:
                return Named(found.name, known is self.here, found.negated, found.ambiguous)
        return Named()

    def takes(self, written: str) -> str:
        """Return what a written option takes, as `arguments.options` asks: "none", "one", "many" or "optional"."""
        named = self.resolved(written)
        option = self.option(named.name) if named.name else None
        if named.negated:
            return "none"
        return {"bool": "optional", "list": "many"}.get(option.kind if option else "", "one" if option else "optional")

    def near(self, name: str) -> str:
        """Return the field of the releases at hand that is spelled most like `name`, or ""."""
        found = get_close_matches(name.lstrip("-").replace("-", "_"), list(self.here), 1, 0.75)
        return found[0] if found else ""

    def default(self, name: str) -> Any:
        """Return a field's default in the releases at hand, None where they do not have it."""
        return self.here[name].default if name in self.here else None


def _exact(text: str, known: Mapping[str, Option]) -> Named | None:
    for name, negated in _readings(text):
        option = known.get(name)
        if option is not None and (not negated or option.default is True):
            return Named(name, negated=negated)
    return None


def _readings(text: str) -> Iterable[tuple[str, bool]]:
    yield _underscored(text), False
    if text.startswith(NO):
        yield _underscored(text[3:]), True


def _underscored(text: str) -> str:
    """Return a field's name: argparse knows its underscores all kept, or all as hyphens."""
    return text if "_" in text else text.replace("-", "_")


def _begun(text: str, known: Mapping[str, Option]) -> Named | None:
    """Return the one field that `text` is the beginning of."""
    if len(text) < 2:
        return None
    spelled = [name for name in known if name.startswith(text) or name.replace("_", "-").startswith(text)]
    if len(spelled) == 1:
        return Named(spelled[0])
    return Named(ambiguous=tuple(sorted(spelled)), name=spelled[0]) if spelled and "_" in text else None


@cache
def names(*parts: tuple[str, str, tuple[str, ...]]) -> Names:
    """Return the options of a parser made of (package, version, dataclasses); a later dataclass outdoes an earlier."""
    here: dict[str, Option] = {}
    ever: dict[str, tuple[str, Span]] = {}
    for package, version, classes in parts:
        read = versions(package).index(at(package, version))
        for each in classes:
            for name, spans in lifetimes(package, each).items():
                ever.setdefault(name, (package, spans[-1]))
                for first, last, option in spans:
                    if versions(package).index(first) <= read <= versions(package).index(last):
                        here[name] = option
    return Names(here, ever)


def since(names_: Names, name: str, at_hand: Mapping[str, str]) -> str:
    """Return "package release" in which a field went that `at_hand` do not have any more, or came later; "" neither."""
    if name not in names_.ever:
        return ""
    package, (first, last, _) = names_.ever[name]
    listed = versions(package)
    read = listed.index(at(package, at_hand.get(package, "")))
    if listed.index(last) < read:
        return f"{package} {listed[listed.index(last) + 1]}"
    return f"{package} {first}" if listed.index(first) > read else ""

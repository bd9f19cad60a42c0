"""The options that Hugging Face's HfArgumentParser derives from dataclasses, by release.

transformers 5.23.0 hf_argparser.py `_parse_dataclass_field`: `--a_b` and `--a-b` are the same option. A bool with a
default may be without a value, but not if the default is None. A bool that is True by default also has `--no_a_b`.
Lists take several words. argparse accepts a prefix that fits only one option.

Source: names/{trl,transformers,llamafactory}.json, made from released wheels by tools/names/*.py.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from attncheck.lint.fields.releases import find_closest_name, find_release, list_releases, parse_release, parse_version
from attncheck.lint.names import load_table

NEGATIONS = ("no_", "no-")
Lifetime = tuple[str, str, "Option"]  # first release, last release


class Option(NamedTuple):
    """One option: `kind` is "bool", "bool?" (None by default: it needs a value), "int", "float", "str", "list"."""

    kind: str
    default: Any
    choices: tuple[str, ...] = ()


class ResolvedOption(NamedTuple):
    """The meaning of a written option: its field's full name ("" if no release has it), and if this release has it."""

    name: str = ""
    available: bool = False
    negated: bool = False  # as in "--no_packing"
    ambiguous: tuple[str, ...] = ()  # the fields of which it may be a prefix


@cache
def find_minor_release(package: str, version: str) -> str:
    """Return the release whose names represent `version`: the newest one read in its minor release that is not newer.

    For most minor releases only the last was read, which also represents the earlier ones.
    """
    try:
        requested = parse_release(version)
    except InvalidVersion:
        return list_releases(package)[-1]
    same_minor = [name for name in list_releases(package) if Version(name).release[:2] == requested.release[:2]]
    older = [name for name in same_minor if Version(name) <= requested]
    return older[-1] if older else same_minor[0] if same_minor else find_release(package, version)


@cache
def read_lifetimes(package: str, class_name: str) -> Mapping[str, tuple[Lifetime, ...]]:
    """Return field -> (first release, last release, option) of one dataclass."""
    rows = load_table(package)["classes"].get(class_name, {})
    return {
        name: tuple(
            (first, last, Option(kind, default, tuple(map(str, choices[0] if choices else ()))))
            for first, last, kind, default, *choices in spans
        )
        for name, spans in rows.items()
    }


def bound_transformers(written: Iterable[str]) -> tuple[str, ...]:
    """Return the requirement that keeps the releases of transformers 4 that know all the options; () for every one."""
    known = read_lifetimes("transformers", "TrainingArguments")
    names = known.keys() & {text.lstrip("-").replace("-", "_") for text in written}
    return _exclude_later(frozenset(known[name][-1][1] for name in names)) if names else ()


@lru_cache(maxsize=1024)
def _exclude_later(last_releases: frozenset[str]) -> tuple[str, ...]:
    last = min(map(parse_version, last_releases))
    later = (item for item in map(parse_version, list_releases("transformers")) if last < item < parse_version("5"))
    return tuple(f"transformers<{release.major}.{release.minor}" for release in itertools.islice(later, 1))


@dataclass(frozen=True)
class ParserOptions:
    """The options of one parser: those of the available releases, and those of any release."""

    current: Mapping[str, Option]
    any_release: Mapping[str, tuple[str, Lifetime]]  # field -> package, and its last lifetime

    def find_option(self, name: str) -> Option | None:
        """Return a field's option in the available releases, or else in the last release that had it."""
        if name in self.current:
            return self.current[name]
        return self.any_release[name][1][2] if name in self.any_release else None

    def resolve(self, text: str) -> ResolvedOption:
        """Return the field that an option sets; `text` is the option with its dashes."""
        if text not in self._resolved:
            self._resolved[text] = self._resolve(text.removeprefix("--"))
        return self._resolved[text]

    @cached_property
    def _resolved(self) -> dict[str, ResolvedOption]:
        return {}

    def _resolve(self, text: str) -> ResolvedOption:
        for known in (self.current, self._last_options):
            match = _match_exact_name(text, known) or _match_prefix(text, known)
            if match is not None:
                return ResolvedOption(match.name, known is self.current, match.negated, match.ambiguous)
        return ResolvedOption()

    @cached_property
    def _last_options(self) -> Mapping[str, Option]:
        """Return each field's option in the last release that had it."""
        return {name: lifetime[1][2] for name, lifetime in self.any_release.items()}

    def arity(self, text: str) -> str:
        """Return the number of values an option takes, for `arguments.options`: "none", "one", "many" or "optional"."""
        resolved = self.resolve(text)
        option = self.find_option(resolved.name) if resolved.name else None
        if resolved.negated:
            return "none"
        return {"bool": "optional", "list": "many"}.get(option.kind if option else "", "one" if option else "optional")

    def find_closest_name(self, name: str) -> str:
        """Return the field of the available releases whose spelling is closest to `name`, or ""."""
        return find_closest_name(name.lstrip("-").replace("-", "_"), self.current, 0.75)

    def find_successor(self, name: str) -> str:
        """Return the similarly spelled field that was added when `name` was removed; "" if there is none."""
        if name not in self.any_release:
            return ""
        package, (_, last, option) = self.any_release[name]
        later = list_releases(package)[list_releases(package).index(last) + 1 :][:1]
        came = [
            field
            for field, (owner, (first, _, other)) in self.any_release.items()
            if owner == package and first in later and other.kind == option.kind and field in self.current
        ]
        return find_closest_name(name, came)

    def default_value(self, name: str) -> Any:
        """Return a field's default in the available releases; None if they do not have the field."""
        return self.current[name].default if name in self.current else None


def _match_exact_name(text: str, known: Mapping[str, Option]) -> ResolvedOption | None:
    for name, is_negated in _possible_names(text):
        option = known.get(name)
        if option is not None and (not is_negated or option.default is True):
            return ResolvedOption(name, negated=is_negated)
    return None


def _possible_names(text: str) -> Iterable[tuple[str, bool]]:
    yield _to_field_name(text), False
    if text.startswith(NEGATIONS):
        yield _to_field_name(text[3:]), True


def _to_field_name(text: str) -> str:
    """Return a field's name; argparse accepts its underscores unchanged or all as hyphens."""
    return text if "_" in text else text.replace("-", "_")


def _match_prefix(text: str, known: Mapping[str, Option]) -> ResolvedOption | None:
    """Return the one field whose name begins with `text`."""
    if len(text) < 2:
        return None
    candidates = [name for name in known if name.startswith(text) or name.replace("_", "-").startswith(text)]
    if len(candidates) == 1:
        return ResolvedOption(candidates[0])
    return (
        ResolvedOption(ambiguous=tuple(sorted(candidates)), name=candidates[0]) if candidates and "_" in text else None
    )


@cache
def build_parser_options(*parts: tuple[str, str, tuple[str, ...]]) -> ParserOptions:
    """Return the options of a parser of (package, version, dataclasses); a later dataclass overrides an earlier one."""
    current: dict[str, Option] = {}
    any_release: dict[str, tuple[str, Lifetime]] = {}
    for package, version, classes in parts:
        position = list_releases(package).index(find_minor_release(package, version))
        for class_name in classes:
            for name, spans in read_lifetimes(package, class_name).items():
                any_release.setdefault(name, (package, spans[-1]))
                for first, last, option in spans:
                    if list_releases(package).index(first) <= position <= list_releases(package).index(last):
                        current[name] = option
    return ParserOptions(current, any_release)


def describe_change(options: ParserOptions, name: str, versions_at_hand: Mapping[str, str]) -> str:
    """Return the "package release" that removed a field or added it after the available versions; otherwise ""."""
    if name not in options.any_release:
        return ""
    package, (first, last, _) = options.any_release[name]
    releases = list_releases(package)
    position = releases.index(find_minor_release(package, versions_at_hand.get(package, "")))
    if releases.index(last) < position:
        return f"{package} {releases[releases.index(last) + 1]}"
    return f"{package} {first}" if releases.index(first) > position else ""

"""What a launch sets for a program that reads its options with HfArgumentParser, as its releases understand it.

Options of the command come before the keys of its configuration file (trl 1.16.0 scripts/utils.py, `TrlParser`: the
file's values replace the defaults of the options). A setting that the releases at hand know under another name counts
under that: what is judged is the launch that was meant, and that it is refused is said by its `Unknown`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.job import SettingProblem, UnknownSetting
from attncheck.core.launch import Launch, Setting, SourceLocation
from attncheck.lint import arguments
from attncheck.lint.fields.names import Names, since
from attncheck.lint.fields.written import FALSE, NONE, TRUE

Renamed = Mapping[str, tuple[str, ...]]  # field -> what it may be called, "name" or "name=value"; (): gone


@dataclass(frozen=True)
class Given:
    """One setting and the field that it sets; `value` of a switch is "true" or "false"."""

    name: str  # a dotted key of a file stays dotted; "" where no release has it
    value: str
    setting: Setting
    option: bool  # of the command; else a key of the file or an override
    known: bool = True  # to the releases at hand, under the name that was written
    now: str = ""  # where it is not known: "name" or "name=value" that it is today
    ambiguous: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """All settings of a launch, and by field the one that counts."""

    names: Names
    every: tuple[Given, ...] = ()
    given: Mapping[str, Given] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Return what a field will hold, None for None: as written, else its default."""
        found = self.given.get(name)
        if found is not None and found.setting.known:
            return None if found.value.lower() in NONE else found.value
        default = self.names.default(name)
        return None if default is None else str(default)

    def on(self, name: str) -> bool:
        """Say whether a field will hold a true value."""
        return (self.text(name) or "").lower() in TRUE

    def number(self, name: str, otherwise: int) -> int:
        """Return the whole number that a field will hold, `otherwise` where it holds none."""
        try:
            return int(float(self.text(name) or ""))
        except (ValueError, OverflowError):
            return otherwise

    def written(self, *names: str) -> bool:
        """Say whether any of the fields is written in the launch."""
        return any(name in self.given for name in names)

    def place(self, *names: str) -> SourceLocation:
        """Return where the first of the fields that is written stands."""
        return next((self.given[name].setting.location for name in names if name in self.given), SourceLocation())

    def remarks(self) -> tuple[str, ...]:
        """Return what is said of settings whose value only running tells."""
        hidden = [one.setting for one in self.every if not one.setting.known and one.name in self.names.ever]
        return tuple(f"{one.name} {one.value}".strip() + ": only running can tell its value" for one in hidden)


def settings(launch: Launch, names: Names, renamed: Renamed, front: int = 1, free: Collection[str] = ()) -> Settings:
    """Return the settings of a launch whose options begin after `front` words; `free` are names that are no fields."""
    every = [one for one in _every(launch, names, renamed, front) if _field(one.setting.name) not in free]
    return joined(names, every)


def joined(names: Names, every: Sequence[Given]) -> Settings:
    """Return settings in their order as one record: of two the later counts, of a new name and an old one the new."""
    given: dict[str, Given] = {}
    for one in every:
        if one.known:
            given[one.name] = one
    for one in every:
        name, equals, value = one.now.partition("=")
        if name and name not in given:
            given[name] = Given(name, value if equals else one.value, one.setting, one.option)
    return Settings(names, tuple(every), given)


def _every(launch: Launch, names: Names, renamed: Renamed, front: int) -> Iterator[Given]:
    """Yield the settings of the file, then those of the command."""
    for setting in (*launch.entries, *arguments.overrides(launch.words[front:], launch.source)):
        top = _field(setting.name)
        name = setting.name if top in names.here else top if top in names.ever else ""
        known = top in names.here
        yield Given(name, setting.value, setting, False, known, "" if known else _now(top, names, renamed))
    for setting in arguments.options(launch.words[front:], names.takes, launch.source):
        named = names.resolved(setting.name)
        known = named.here and not named.ambiguous
        now = "" if known or named.ambiguous else _now(named.name or _field(setting.name), names, renamed)
        name = named.name if not named.ambiguous else ""
        option = names.option(name)
        value = setting.value
        if named.negated or (option is not None and option.kind == "bool" and not value):
            value = "false" if named.negated else "true"
        yield Given(name, value, setting, True, known, now, named.ambiguous)


def _field(written: str) -> str:
    return written.lstrip("-").split(".")[0].split("[")[0].replace("-", "_")


def _now(name: str, names: Names, renamed: Renamed) -> str:
    """Return the first of the new names that the releases at hand have, "" where there is none."""
    return next((each for each in renamed.get(name, ()) if each.split("=")[0] in names.here), "")


def unknown(found: Settings, at_hand: Mapping[str, str], strict: bool) -> Iterator[UnknownSetting]:
    """Yield the settings that the parser does not know: only those that some release had where it is not `strict`."""
    for one in found.every:
        if one.known:
            continue
        dashes = "--" if one.option else ""
        name = one.name or _field(one.setting.name)
        when = since(found.names, name, at_hand)
        if one.now or name in found.names.ever:
            now = (dashes + one.now.replace("=", " " if dashes else ": "),) if one.now else ()
            yield UnknownSetting(one.setting.name, one.setting.location, now, when)
        elif strict:
            near = one.ambiguous[0] if one.ambiguous else found.names.near(name)
            yield UnknownSetting(one.setting.name, one.setting.location, near=dashes + near if near else "")


def refused(found: Settings, evidence: str) -> Iterator[SettingProblem]:
    """Yield what the parser itself refuses: an option without the value that it must have, a value of no choice."""
    for given in found.every:
        option = found.names.option(given.name) if given.known else None
        if option is not None and given.setting.known:
            yield from _refused(given, option.kind, option.choices, str(option.default), evidence)


def _refused(
    given: Given, kind: str, choices: tuple[str, ...], default: str, evidence: str
) -> Iterator[SettingProblem]:
    written, value, place = given.setting.name, given.value.lower(), given.setting.location
    if given.option and not given.value and kind != "bool":
        optional = kind == "bool?"
        why = "its default is None, so that it is no switch" if optional else "a value must follow"
        sets = {given.name: "true"} if optional else {}
        yield SettingProblem("refuses", f"{written} stands without a value: {why}", (evidence,), place, sets)
    elif kind in ("bool", "bool?") and value not in TRUE | FALSE | NONE:
        yield SettingProblem("refuses", f"{written} is {given.value!r}, neither true nor false", (evidence,), place)
    elif choices and given.value not in choices and value not in NONE:
        text = f"{written} is {given.value!r}; it takes {', '.join(choices)}"
        yield SettingProblem("refuses", text, (evidence,), place, {given.name: default} if default in choices else {})

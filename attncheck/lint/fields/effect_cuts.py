"""Takes out of a cut launch what would write elsewhere, send, delete or load: in its command, and in its file.

It is the last step of a cut, regardless of the framework: what the framework's own cut has set stays. A place leads
into the throwaway folder under its own name; everything else that `find_effect` names is left out, or false if it is a
truth value of a file. A table in a value (`--model_init_kwargs '{"trust_remote_code": true}'`) is cut inside. Of a
script whose options are known, what it would do by default is set too.

Positional arguments and options of one letter that no long one represents are not known by words: they stay.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import Edit, Launch, Setting, Source, Word
from attncheck.core.program import Program, ProgramOption
from attncheck.core.rehearsal import Materials
from attncheck.lint.arguments import OVERRIDE, is_option, iter_option_values
from attncheck.lint.fields.effects import SWITCH_KINDS, Effect, find_effect
from attncheck.lint.fields.rehearsing import OFF_VALUES, ON_VALUES
from attncheck.lint.files import editing
from attncheck.lint.files.configuration import parse_entries

# Values with which nothing is written or sent.
HARMLESS = (*OFF_VALUES, "disable", "disabled", "never", "console", "-1", "{}")
TRUTH = tuple(value for value in (*ON_VALUES, *OFF_VALUES) if value)
SWITCH_EFFECTS = ("overwrite", "remote_code")  # what follows is no value of theirs, but for a truth value
LAUNCHER_EFFECTS = ("place", "secret")
ENDING = re.compile(r"(?<=[^/])\.\w{1,8}$")  # of a file


@dataclass(frozen=True)
class CutEffects:
    """A launch without effects; what was left out of it, and what it writes elsewhere now, name to place."""

    launch: Launch
    left_out: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> tuple[str, ...]:
        """The places that are folders, which a script may want to find."""
        return tuple(path for path in self.places.values() if is_folder(path))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is reported of it: names, and no values."""
        lines = (("left out", self.left_out), ("written in the throwaway folder instead", tuple(self.places)))
        return tuple(f"{what}: {', '.join(dict.fromkeys(names))}" for what, names in lines if names)


def cut_effects(launch: Launch, sets: Mapping[str, str], materials: Materials) -> CutEffects:
    """Return a launch that `sets` has cut already without what else it would do. Raises `Unanswered`."""
    cutter = _Cutter({_normalise(name): value for name, value in sets.items()}, materials)
    command = _Command(cutter, launch.program)
    first = len(launch.launcher_words)
    before = [
        word for group in split_options(launch.launcher_words, None) for word in command.cut(group, LAUNCHER_EFFECTS)
    ]
    program = launch.whole[first:] or launch.words  # with what the shell adds, "$@", which `words` leaves out
    words = [word for group in split_options(program, launch.program) for word in command.cut(group)]
    words += command.list_defaults(launch) if words and words[0].text.endswith(".py") else ()
    file = cutter.cut_file(launch.file, launch.entries) if launch.file is not None else None
    changed = replace(launch, words=tuple(words), whole=(*before, *words) if launch.whole else launch.whole[:first])
    if file is not None:
        source = file if launch.source is launch.file or launch.source == launch.file else launch.source
        changed = replace(changed, file=file, source=source, entries=parse_entries(file))
    return CutEffects(changed, tuple(cutter.left_out), cutter.places)


class _Cutter:
    """Decides on settings, and remembers what it did."""

    def __init__(self, sets: Mapping[str, str], materials: Materials) -> None:
        self.sets = sets
        self.materials = materials
        self.room = f"{os.path.dirname(materials.output)}{os.sep}"
        self.left_out: list[str] = []
        self.places: dict[str, str] = {}

    def judge(self, name: str, value: str, kind: str = "") -> Effect:
        """Return the effect of a setting that is to be cut, "" if it may stay."""
        if not value or self.sets.get(_normalise(name)) == value or os.path.normpath(value).startswith(self.room):
            return ""
        effect = find_effect(name, kind, value)
        allowed = {"checkpoint": self.materials.full_model, "remote_code": self.materials.trust_remote_code}
        return "" if allowed.get(effect) or (effect != "place" and is_harmless(value)) else effect

    def redirect(self, name: str, value: str) -> str:
        """Return the place in the throwaway folder that represents one of the launch's."""
        ending = ENDING.search(value)
        file = re.sub(r"[^\w.-]", "_", _normalise(name)) + (ending[0] if ending else "")
        path = os.path.join(self.materials.output, file)
        self.places[name] = path
        return path

    def cut_table(self, value: str) -> str:
        """Return a value whose tables are without effects; any other as it is."""
        if not value.lstrip().startswith(("{", "[")):
            return value
        try:
            content = json.loads(value)
        except ValueError:
            return value
        without = self._cut_content(content)
        return value if without == content else json.dumps(without, ensure_ascii=False)

    def _cut_content(self, content: Any) -> Any:
        if isinstance(content, list):
            return [self._cut_content(item) for item in content]
        if not isinstance(content, dict):
            return content
        kept = {}
        for name, item in content.items():
            text = item if isinstance(item, str) else json.dumps(item)
            effect = self.judge(name, text) if not isinstance(item, dict) else ""
            if not effect:
                kept[name] = self._cut_content(item)
            elif effect == "place":
                kept[name] = self.redirect(name, text)
            else:
                self.left_out.append(name)
        return kept

    def cut_file(self, file: Source, entries: Iterable[Setting]) -> Source:
        """Return a configuration file without effects. Raises `Unanswered` if one cannot be taken out."""
        edits: list[Edit] = []
        for entry in entries:
            try:
                edits += self._edit_entry(file, entry)
            except ValueError:
                raise Unanswered(
                    f"{entry.location}: {entry.name} may write files or send data, and cannot be removed here"
                ) from None
        return replace(file, text=editing.apply_edits(file, edits)) if edits else file

    def _edit_entry(self, file: Source, entry: Setting) -> Iterator[Edit]:
        effect = self.judge(entry.name, entry.value)
        if not effect:
            value = self.cut_table(entry.value)
            if value != entry.value:
                yield editing.replace_value(entry, value)
        elif effect == "place":
            yield editing.replace_value(entry, self.redirect(entry.name, entry.value))
        else:
            self.left_out.append(entry.name)
            is_true = entry.value.lower() in ON_VALUES
            yield editing.replace_value(entry, "false") if is_true else editing.remove_setting(file, entry.span)


class _Command:
    """Cuts the words of a command."""

    def __init__(self, cutter: _Cutter, program: Program | None) -> None:
        self.cutter = cutter
        self.program = program

    def cut(self, group: Sequence[Word], effects: Sequence[str] = ()) -> Sequence[Word]:
        """Return an option with its values, an override, or any other word, as it may stay; () if it may not."""
        written, _, value = group[0].text.partition("=")
        if not is_option(written) and not is_override(group[0].text):
            return group
        name, option = _find_option(self.program, written)
        if len(group) > 1:
            value = " ".join(word.text for word in group[1:])
        elif is_option(written) and "=" not in group[0].text:
            value = "true"
        effect = self.cutter.judge(name, value.strip("'\""), option.kind if option is not None else "")
        if not effect or (effects and effect not in effects):
            return self._set_value(group, value, self.cutter.cut_table(value))
        if effect == "place":
            return self._set_value(group, value, self.cutter.redirect(name, value))
        self.cutter.left_out.append(written)
        keeps = not is_option(written) and value.lower() in ON_VALUES
        return self._set_value(group, value, "false") if keeps else ()

    @staticmethod
    def _set_value(group: Sequence[Word], old: str, new: str) -> Sequence[Word]:
        """Return an option or override with another value."""
        if old == new:
            return group
        last = group[-1]
        text = new if len(group) > 1 else f"{last.text.partition('=')[0]}={new}"
        word = replace(last, text=text, known=True, shell="")
        return (group[0], word) if len(group) > 1 else (word,)

    def list_defaults(self, launch: Launch) -> Iterator[Word]:
        """Yield the options by which the user's own script does not do what it would do without them."""
        if self.program is None:
            return
        texts = (*(word.text.partition("=")[0] for word in launch.words), *(entry.name for entry in launch.entries))
        written = {_normalise(_find_option(self.program, text)[0]) for text in texts}
        places = {option.place for name, option in self.program.options.items() if _normalise(name) in written}
        for name, option in self.program.options.items():
            if _normalise(name) in written or (option.place and option.place in places):
                continue
            value = self._switch_off(name, option)
            if value:
                places.add(option.place)
                is_option = self.program.style in ("argparse", "dataclasses")
                added = (f"--{name}", value) if is_option else (f"{name}={value}",)
                yield from (replace(launch.words[0], text=text, shell="", known=True) for text in added)

    def _switch_off(self, name: str, option: ProgramOption) -> str:
        """Return the value with which an option does nothing, "" if it does nothing on its own, or none is known."""
        default = option.default
        if not default or not isinstance(default, (str, bool)) or option.nargs == 0 or len(name) < 2:
            return ""
        effect = self.cutter.judge(name, str(default).lower() if default is True else str(default), option.kind)
        if effect == "place":
            return self.cutter.redirect(name, str(default))
        is_parsed = self.program is not None and self.program.style != "argparse"  # where bool("false") is true
        off = [choice for choice in option.choices if is_harmless(choice)]
        return off[0] if effect and off else "false" if effect and default is True and is_parsed else ""


def is_folder(path: str) -> bool:
    """Return whether a place is a folder: a name without an ending."""
    return not ENDING.search(path)


def names_place(launch: Launch) -> bool:
    """Return whether an option of a launch names a place to write."""
    options = iter_option_values(launch.words)
    return any(find_effect(_find_option(launch.program, name)[0], "", word.text) == "place" for name, word in options)


def is_harmless(value: str) -> bool:
    """Return whether nothing is written or sent with a value: it is off, or a list of nothing but the console."""
    words = re.findall(r"[^\s\[\]'\",]+", value.lower())
    return all(word in HARMLESS for word in words)


def split_options(words: Sequence[Word], program: Program | None) -> Iterator[Sequence[Word]]:
    """Yield the words of a command, each option with its values; a switch that is known to be one has none."""
    index = 0
    while index < len(words):
        word, end = words[index], index + 1
        if word.text == "--":
            yield from ((other,) for other in words[index:])
            return
        if is_option(word.text) and "=" not in word.text:
            while end < len(words) and _is_value(words[end].text, end - index, word.text, program):
                end += 1
        yield words[index:end]
        index = end


def _is_value(text: str, place: int, written: str, program: Program | None) -> bool:
    """Return whether a word is the value of an option at this place behind it."""
    if is_option(text) or text == "--":
        return False
    name, option = _find_option(program, written)
    if option is not None and option.nargs == 0:
        return False
    effect = find_effect(name, option.kind if option is not None else "")
    if effect in SWITCH_EFFECTS or (option is not None and option.kind in SWITCH_KINDS):
        return place == 1 and text.lower() in TRUTH
    many = option is None or option.nargs in ("*", "+") or option.kind == "list"
    return place == 1 or (many and effect not in ("", "place") and not is_override(text))


def is_override(text: str) -> bool:
    """Return whether a word is `key=value`, as Hydra and OmegaConf take it."""
    return "=" in text and not text.startswith("~") and OVERRIDE.fullmatch(text) is not None


def _find_option(program: Program | None, written: str) -> tuple[str, ProgramOption | None]:
    """Return the whole name of an option, and what is known of it: `-o` and `--overw` may represent a long one."""
    text = written.lstrip("-+")
    options = program.options if program is not None else {}
    known = options.get(text) or options.get(text.replace("-", "_"))
    if known is not None and len(text) == 1 and known.place:
        text = next((name for name, option in options.items() if len(name) > 1 and option.place == known.place), text)
    if known is None and written.startswith("--"):
        longer = [name for name in options if name.startswith(text)]
        text, known = (longer[0], options[longer[0]]) if len(longer) == 1 else (text, None)
    return text, known


def _normalise(name: str) -> str:
    return name.lstrip("-+~").replace("-", "_")

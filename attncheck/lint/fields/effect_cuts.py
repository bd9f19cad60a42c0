"""Removes settings of a scaled-down launch that would write elsewhere, send data, delete files or load state.

This is the last step of scaling down a launch, for any framework; settings from the framework's own step are kept. A
place is moved into the temporary folder under its own name. Everything else that `find_effect` names is left out, or
set to false if it is a boolean in a file. A table in a value (`--model_init_kwargs '{"trust_remote_code": true}'`) is
cleaned inside. For a script with known options, its default effects are switched off too.

Positional arguments and one-letter options without a known long form are kept, because their names have no words.
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
from attncheck.lint.arguments import OVERRIDE, is_option
from attncheck.lint.fields.effects import Effect, find_effect
from attncheck.lint.fields.rehearsing import OFF_VALUES, ON_VALUES
from attncheck.lint.files import editing
from attncheck.lint.files.configuration import parse_entries

# Values that write and send nothing.
HARMLESS = (*OFF_VALUES, "disable", "disabled", "never", "console", "-1", "{}")
TRUTH = tuple(value for value in (*ON_VALUES, *OFF_VALUES) if value)
SWITCH_EFFECTS = ("overwrite", "remote_code")  # these take no value except a boolean
LAUNCHER_EFFECTS = ("place", "secret")
CONFIG_ENDINGS = (".yaml", ".yml", ".json")
ENDING = re.compile(r"(?<=[^/])\.\w{1,8}$")  # extension of a file name


@dataclass(frozen=True)
class CutEffects:
    """A launch without effects, the settings removed from it, and the redirected paths: name -> path."""

    launch: Launch
    left_out: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> tuple[str, ...]:
        """The places that are folders, which a script may expect to exist."""
        return tuple(path for path in self.places.values() if is_folder(path))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the report: names without values."""
        lines = (("left out", self.left_out), ("written in the throwaway folder instead", tuple(self.places)))
        return tuple(f"{what}: {', '.join(dict.fromkeys(names))}" for what, names in lines if names)


def cut_effects(
    launch: Launch, sets: Mapping[str, str], materials: Materials, keeps_adapters: bool = False
) -> CutEffects:
    """Return a launch, already scaled down by `sets`, without its other effects. Raises `Unanswered`.

    With `keeps_adapters` it names the folders of adapters that exist, for which the watcher makes small ones.
    """
    folder = launch.folder if keeps_adapters else None
    cutter = _Cutter({_normalise(name): value for name, value in sets.items()}, materials, folder)
    command = _Command(cutter, launch.program)
    first = len(launch.launcher_words)
    before = [
        word for group in split_options(launch.launcher_words, None) for word in command.cut(group, LAUNCHER_EFFECTS)
    ]
    program = launch.whole[first:] or launch.words  # includes "$@", which the shell adds and `words` omits
    words = [word for group in split_options(program, launch.program) for word in command.cut(group)]
    # scripts read a file if it is their only argument, and may not know a key of another release
    is_alone = launch.file is not None and [word.text.endswith(CONFIG_ENDINGS) for word in words] == [False, True]
    words += command.list_defaults(launch) if words and words[0].text.endswith(".py") and not is_alone else ()
    file = cutter.cut_file(launch.file, launch.entries) if launch.file is not None else None
    changed = replace(launch, words=tuple(words), whole=(*before, *words) if launch.whole else launch.whole[:first])
    if file is not None:
        source = file if launch.source is launch.file or launch.source == launch.file else launch.source
        changed = replace(changed, file=file, source=source, entries=parse_entries(file))
    return CutEffects(changed, tuple(cutter.left_out), cutter.places)


class _Cutter:
    """Decides on settings, and records its decisions."""

    def __init__(self, sets: Mapping[str, str], materials: Materials, folder: str | None) -> None:
        self.sets = sets
        self.folder = folder  # in which adapters are kept
        self.materials = materials
        self.room = f"{os.path.dirname(materials.output)}{os.sep}"
        self.left_out: list[str] = []
        self.places: dict[str, str] = {}

    def judge(self, name: str, value: str, kind: str = "") -> Effect:
        """Return the effect of a setting to remove; "" if it may stay."""
        if not value or self.sets.get(_normalise(name)) == value or os.path.normpath(value).startswith(self.room):
            return ""
        effect = find_effect(name, kind, value)
        file = os.path.join(self.folder or "", value, "adapter_config.json")
        is_kept = self.materials.full_model or (self.folder is not None and os.path.isfile(file))
        allowed = {"checkpoint": is_kept, "remote_code": self.materials.trust_remote_code}
        return "" if allowed.get(effect) or (effect != "place" and is_harmless(value)) else effect

    def redirect(self, name: str, value: str) -> str:
        """Return the place in the temporary folder that replaces one of the launch's places."""
        ending = ENDING.search(value)
        file = re.sub(r"[^\w.-]", "_", _normalise(name)) + (ending[0] if ending else "")
        path = os.path.join(self.materials.output, file)
        self.places[name] = path
        return path

    def cut_table(self, value: str) -> str:
        """Return a value with its tables cleaned; any other value is returned unchanged."""
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
        """Return a configuration file without effects. Raises `Unanswered` if one cannot be removed."""
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
    """Edits the words of a command."""

    def __init__(self, cutter: _Cutter, program: Program | None) -> None:
        self.cutter = cutter
        self.program = program

    def cut(self, group: Sequence[Word], effects: Sequence[str] = ()) -> Sequence[Word]:
        """Return an option with its values, an override, or another word, in its allowed form; () if not allowed."""
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
        """Yield the options that prevent the default effects of the user's script."""
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
        """Return the value that disables an option; "" if it has no effect by default, or if no such value is known."""
        default = option.default
        if not default or not isinstance(default, (str, bool)) or option.nargs == 0 or len(name) < 2:
            return ""
        effect = self.cutter.judge(name, str(default).lower() if default is True else str(default), option.kind)
        if effect == "place":
            return self.cutter.redirect(name, str(default))
        is_parsed = self.program is not None and self.program.style != "argparse"  # otherwise bool("false") is true
        off = [choice for choice in option.choices if is_harmless(choice)]
        return off[0] if effect and off else "false" if effect and default is True and is_parsed else ""


def is_folder(path: str) -> bool:
    """Return whether a place is a folder: a name without a file extension."""
    return not ENDING.search(path)


def is_harmless(value: str) -> bool:
    """Return whether a value writes and sends nothing: it is off, or a list that holds only the console."""
    words = re.findall(r"[^\s\[\]'\",]+", value.lower())
    return all(word in HARMLESS for word in words)


def split_options(words: Sequence[Word], program: Program | None) -> Iterator[Sequence[Word]]:
    """Yield the words of a command, each option with its values; a known switch has none."""
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
    """Return whether a word at this place after an option is one of its values."""
    if is_option(text) or text == "--":
        return False
    name, option = _find_option(program, written)
    if option is not None and option.nargs == 0:
        return False
    effect = find_effect(name, option.kind if option is not None else "")
    if effect in SWITCH_EFFECTS or (option is not None and option.kind in ("bool", "bool?")):
        return place == 1 and (text.lower() in TRUTH or text.startswith("$"))
    many = option is None or option.nargs in ("*", "+") or option.kind == "list"
    return place == 1 or (many and effect not in ("", "place") and not is_override(text))


def is_override(text: str) -> bool:
    """Return whether a word has the form `key=value` of Hydra and OmegaConf."""
    return "=" in text and not text.startswith("~") and OVERRIDE.fullmatch(text) is not None


def _find_option(program: Program | None, written: str) -> tuple[str, ProgramOption | None]:
    """Return the full name of an option, and its known properties; `-o` and `--overw` may be short forms."""
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

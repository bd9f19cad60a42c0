"""Reads the literal settings of a training script: `SFTConfig(packing=True)`, `….from_pretrained(dtype=…)`.

The script is parsed, never run. A value is known if it is a literal, or a name that the script binds once, to a
literal. `**` is followed if it unpacks a dict of such values. All other values are unknown. If several calls of one
class differ in a setting, its value is unknown too.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from attncheck.core.launch import NOWHERE, Edit, Source, Span
from attncheck.core.lists import group_values
from attncheck.lint.files.edit_text import quote_value
from attncheck.lint.files.entry import Configuration, Entry
from attncheck.lint.files.traced_models import trace_models
from attncheck.lint.open_ends import COULD_NOT_BE_READ

MAX_CHARACTERS = 1 << 18
MARKS = ("TrainingArguments", "Trainer")  # a script without these words is not parsed
TRAINING_ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
MODEL_SUFFIXES = ("ForCausalLM", "ForConditionalGeneration", "ForImageTextToText", "AutoModel", "ForVision2Seq")
MODEL_CLASSES = ("FastLanguageModel", "FastModel", "FastVisionModel")  # unsloth's classes
MODEL_NAMES = ("pretrained_model_name_or_path", "model_name")
ADAPTED = "peft.model"  # set if the script adds an adapter to its model
DTYPE = "from_pretrained.dtype"  # dtype of the weights; "" if a call of from_pretrained leaves it to transformers
MODEL_ARGUMENTS = {"attn_implementation": "attn_implementation", "dtype": DTYPE, "torch_dtype": DTYPE}
# Found faster than the pattern.
DEVICE_WORDS = ("device_map", "CUDA_VISIBLE_DEVICES", "n_gpu", "no_cuda", "use_cpu", "unsloth")
DEVICES = re.compile(r"device_map|CUDA_VISIBLE_DEVICES|\b_?n_gpu\b|\bno_cuda\b|\buse_cpu\b|\bunsloth\b")


def names_devices(text: str) -> bool:
    """Return whether a program names its process's devices, so that the use of nn.DataParallel is unknown.

    unsloth does so by its import (2025.1.5 unsloth/__init__.py: CUDA_VISIBLE_DEVICES), or in its trainers (later).
    """
    return any(word in text for word in DEVICE_WORDS) and DEVICES.search(text) is not None


class _Argument(NamedTuple):
    name: str
    value: ast.expr
    start: ast.AST  # the node at which the argument begins
    is_named: bool = True  # False: it is a positional argument


@dataclass(frozen=True)
class Script:
    """A parsed training script: its settings class, with every call that creates one or loads a model."""

    source: Source
    tree: ast.Module = field(compare=False)

    @cached_property
    def imports(self) -> dict[str, str]:
        """Return the dotted name of each imported name."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        return names

    @cached_property
    def derived(self) -> dict[str, str]:
        """Return the TRL trainer that each of the script's classes is, if its constructor is not its own."""
        classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]
        bases = {
            node.name: self.imports.get(base.id, "")
            for node in classes
            for base in node.bases[:1]
            if isinstance(base, ast.Name)
        }
        own = {node.name for node in classes for item in node.body if getattr(item, "name", "") == "__init__"}
        return {name: base for name, base in bases.items() if base.startswith("trl.") and name not in own}

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Return the expression of each name that the script binds once, by an assignment."""
        bound: list[str] = []
        values: dict[str, ast.expr] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.append(node.id)
            elif isinstance(node, ast.arg):
                bound.append(node.arg)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            if value is not None and isinstance(targets[0], ast.Name) and len(targets) == 1:
                values[targets[0].id] = value
        return {name: value for name, value in values.items() if bound.count(name) == 1}

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Return every call with the dotted name of the called function, in text order."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        ordered = sorted(nodes, key=lambda node: (node.lineno, node.col_offset))
        return [(self._name_function(node.func), node) for node in ordered]

    def _name_function(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, self.derived.get(node.id, node.id))
        return f"{self._name_function(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""

    @cached_property
    def trainers(self) -> list[ast.Call]:
        """Return the calls of TRL's trainers."""
        return [call for name, call in self.calls if name.startswith("trl.") and name.endswith("Trainer")]

    @cached_property
    def settings_calls(self) -> list[tuple[str, ast.Call]]:
        """Return the calls that create TrainingArguments, or the configuration of a TRL trainer."""
        return [
            (f"{name.partition('.')[0]}.{name.rpartition('.')[2]}", call)
            for name, call in self.calls
            if _is_settings_class(name) and not any(map(self._copies_parsed, call.keywords))
        ]

    def _copies_parsed(self, keyword: ast.keyword) -> bool:
        """Return whether a keyword unpacks a copy of parsed arguments: `**options` after `options = args.to_dict()`."""
        value = self.values.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else keyword.value
        name = self._name_function(value.func) if keyword.arg is None and isinstance(value, ast.Call) else ""
        return name.rpartition(".")[2] in ("to_dict", "asdict")

    @cached_property
    def columns(self) -> set[str]:
        """Return the string subscripts in the script, `row["question"]`, which include the columns of its data."""
        slices = [node.slice for node in ast.walk(self.tree) if isinstance(node, ast.Subscript)]
        return {node.value for node in slices if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    @cached_property
    def trains(self) -> bool:
        """Whether the script calls a `train()` method; a module that only defines a trainer does not."""
        return any(isinstance(call.func, ast.Attribute) and call.func.attr == "train" for _, call in self.calls)

    @cached_property
    def parsed_classes(self) -> set[str]:
        """Return the classes that a parser of dataclasses fills from the command, and their bases."""
        parsers = [call for name, call in self.calls if name.endswith("Parser")]
        nodes = [node for call in parsers for argument in call.args for node in ast.walk(argument)]
        names = {self._name_function(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}
        classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef) and node.name in names]
        return {*names, *(self._name_function(base) for node in classes for base in node.bases)}

    @cached_property
    def model_calls(self) -> list[ast.Call]:
        """Return the calls that load the model of a trainer; all that load a language model if it is unknown which."""
        trained = trace_models((self.tree,)).trained
        owners = [(name.removesuffix(".from_pretrained"), call) for name, call in self.calls if "." in name]
        return [
            call
            for (name, call) in owners
            if isinstance(call.func, ast.Attribute)
            and call.func.attr == "from_pretrained"
            and (
                (name.endswith(MODEL_SUFFIXES) or name.rpartition(".")[2] in MODEL_CLASSES)
                if trained is None
                else call in trained
            )
        ]

    @cached_property
    def settings_class(self) -> str:
        """Return the class that holds the settings, such as "trl.SFTConfig"; "" if unknown.

        TrainingArguments that are passed to a single TRL trainer count as its configuration.
        """
        if not self.trains or any(_is_settings_class(name) for name in self.parsed_classes):
            return ""
        classes = {name for name, _ in self.settings_calls}
        takes_settings = any(
            len(trainer.args) > 1 or any(keyword.arg in ("args", None) for keyword in trainer.keywords)
            for trainer in self.trainers
        )
        if not classes and (self.parsed_classes or takes_settings):
            return ""
        trainers = {name for name, call in self.calls if call in self.trainers}
        trained = {f"trl.{name.rpartition('.')[2].removesuffix('Trainer')}Config" for name in trainers}
        if len(trained) == 1 and classes <= {*TRAINING_ARGUMENTS, *trained}:
            return trained.pop()
        return classes.pop() if len(classes) == 1 and not trained else ""

    def read_entries(self) -> tuple[list[Entry], list[str]]:
        """Return the settings of the script, and a note on each unreadable part of them."""
        notes: list[str] = []
        entries = self._merge([self._list_arguments(call, notes) for _, call in self.settings_calls])
        if all(name in TRAINING_ARGUMENTS for name, _ in self.settings_calls):  # TRL accepted these before 0.13
            entries += self._merge([self._pick(call, "packing", "packing") for call in self.trainers])
        configurations = [call for name, call in self.calls if name.endswith("LoraConfig")]
        entries += self._merge([self._list_adapter(call) for call in configurations])
        given = [
            _Argument(ADAPTED, ast.Constant(True), call, False)
            for name, call in self.calls
            if name.endswith(("get_peft_model", "PeftModel.from_pretrained"))
        ]
        entries += self._merge([[argument] for argument in given])
        models = [[*self._list_model_arguments(call, notes)] for call in self.model_calls]
        entries += self._merge(models or [self._pick_model(call) for call in self.trainers])
        if models and not any(entry.name == DTYPE for entry in entries):
            call = self.model_calls[0]
            entries.append(self._make_entry(_Argument(DTYPE, ast.Constant(None), call), True))
        assigned = {node.attr: _Argument(node.attr, node, node, False) for node in self._list_assigned()}
        entries = [entry for entry in entries if entry.name.partition(".")[0] not in assigned]
        return [*entries, *(self._make_entry(argument, False) for argument in assigned.values())], notes

    def _list_adapter(self, call: ast.Call) -> list[_Argument]:
        return [item._replace(name=f"peft.{item.name}") for item in self._list_arguments(call, [])]

    def _list_assigned(self) -> list[ast.Attribute]:
        """Return the assignments to settings after their creation: `args.packing = …`."""
        made = [call for _, call in self.settings_calls]
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        stored = [node for node in nodes if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)]
        return [node for node in stored if isinstance(node.value, ast.Name) and self.values.get(node.value.id) in made]

    def _pick(self, call: ast.Call, name: str, field_name: str) -> list[_Argument]:
        return [item._replace(name=field_name) for item in self._list_arguments(call, []) if item.name == name]

    def _pick_model(self, trainer: ast.Call) -> list[_Argument]:
        first = [_Argument("model_name_or_path", argument, argument, False) for argument in trainer.args[:1]]
        return [*self._pick(trainer, "model", "model_name_or_path"), *first]

    def _list_arguments(self, call: ast.Call, notes: list[str]) -> list[_Argument]:
        arguments: list[_Argument] = []
        for keyword in call.keywords:
            if keyword.arg is not None:
                arguments.append(_Argument(keyword.arg, keyword.value, keyword))
                continue
            items = self._unpack(keyword.value)
            arguments += items or ()
            if items is None:
                location = self.source.location(self.find_offset(keyword.value))
                notes.append(f"**{ast.unparse(keyword.value)} ({location}) {COULD_NOT_BE_READ}")
        return arguments

    def _unpack(self, node: ast.expr) -> list[_Argument] | None:
        """Return the items of a dict literal, or of a name that is bound to one and not used otherwise."""
        if isinstance(node, ast.Name) and node.id in self.values:
            uses = [n for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id == node.id]
            unpacked = [n for n in ast.walk(self.tree) if isinstance(n, ast.keyword) and n.arg is None]
            if len(uses) != 1 + sum(isinstance(n.value, ast.Name) and n.value.id == node.id for n in unpacked):
                return None
            node = self.values[node.id]
        if isinstance(node, ast.Call) and self._name_function(node.func) == "dict" and not node.args:
            named = [keyword for keyword in node.keywords if keyword.arg]
            return [_Argument(str(k.arg), k.value, k) for k in named] if len(named) == len(node.keywords) else None
        if not isinstance(node, ast.Dict):
            return None
        items = [
            _Argument(str(key.value), value, key)
            for key, value in zip(node.keys, node.values)
            if isinstance(key, ast.Constant)
        ]
        return items if len(items) == len(node.keys) else None

    def _list_model_arguments(self, call: ast.Call, notes: list[str]) -> Iterator[_Argument]:
        for argument in self._list_arguments(call, notes):
            if argument.name in MODEL_ARGUMENTS:
                yield argument._replace(name=MODEL_ARGUMENTS[argument.name])
            elif argument.name in MODEL_NAMES:
                yield argument._replace(name="model_name_or_path")
        if call.args and not isinstance(call.args[0], ast.Starred):
            yield _Argument("model_name_or_path", call.args[0], call.args[0], False)

    def _merge(self, calls: Sequence[Sequence[_Argument]]) -> list[Entry]:
        """Return the arguments of several calls as one list; a value on which they differ is unknown."""
        by_name = group_values((argument.name, argument) for arguments in calls for argument in arguments)
        entries: list[Entry] = []
        for arguments in by_name.values():
            agrees = len(arguments) == len(calls) and len({ast.dump(argument.value) for argument in arguments}) == 1
            entries += self._flatten(arguments[0], agrees)
        return entries

    def _flatten(self, argument: _Argument, agrees: bool) -> Iterator[Entry]:
        """Yield an argument, or the items of a dict, each with a dotted name."""
        items = self._unpack(argument.value) if isinstance(argument.value, (ast.Dict, ast.Call)) else None
        if not items:
            yield self._make_entry(argument, agrees)
        for item in items or ():
            yield from self._flatten(item._replace(name=f"{argument.name}.{item.name}"), agrees)

    def _make_entry(self, argument: _Argument, agrees: bool) -> Entry:
        text = self._format_value(argument.value)
        start = self.find_offset(argument.start)
        has_place = argument.is_named and hasattr(argument.value, "lineno")
        span = value_span = NOWHERE
        if has_place:
            value_span = (self.find_offset(argument.value), self.find_end(argument.value))
            # a keyword ends after the brackets around its value
            whole = argument.start if isinstance(argument.start, ast.keyword) else argument.value
            span = (start, self.find_end(whole))
        shown = text if text is not None else ast.unparse(argument.value)
        location = self.source.location(start)
        return Entry(argument.name, shown, location, span, value_span, agrees and text is not None, "python")

    def _format_value(self, node: ast.expr, depth: int = 0) -> str | None:
        """Return a value in the notation of configuration files; None if it is known only at run time."""
        if isinstance(node, ast.Name) and node.id in self.values and depth < 4:
            return self._format_value(self.values[node.id], depth + 1)
        if isinstance(node, ast.Attribute) and self._name_function(node).startswith("torch."):
            return node.attr if "float" in node.attr or node.attr == "half" else None
        try:
            value: Any = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None
        if isinstance(value, str):
            return value
        try:
            return json.dumps(value) if value is not None else "null"
        except (TypeError, ValueError):
            return None

    @cached_property
    def _lines(self) -> list[tuple[int, bytes]]:
        """Return each line in UTF-8, in which ast counts, with its offset."""
        lines = self.source.text.splitlines(keepends=True)
        return [(start, line.encode()) for start, line in zip(accumulate(map(len, lines), initial=0), lines)]

    def find_offset(self, node: ast.AST) -> int:
        """Return the character offset at which a node begins."""
        return self._find_character(getattr(node, "lineno", 1), getattr(node, "col_offset", 0))

    def find_end(self, node: ast.AST) -> int:
        """Return the character offset after the end of a node."""
        return self._find_character(getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0))

    def _find_character(self, line: int, column: int) -> int:
        start, text = self._lines[line - 1]
        return start + len(text[:column].decode(errors="replace"))


def _is_settings_class(name: str) -> bool:
    is_configuration = name.startswith("trl.") and name.endswith("Config") and not name.endswith("ModelConfig")
    return is_configuration or (name.startswith("transformers.") and name.endswith("TrainingArguments"))


@lru_cache(maxsize=64)
def read_script(source: Source) -> Script | None:
    """Return a script that is known to contain literal settings; None for any other text."""
    if source.kind != "python" or len(source.text) > MAX_CHARACTERS or not any(m in source.text for m in MARKS):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the script's strings
            script = Script(source, ast.parse(source.text))
        return script if script.settings_class else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_settings_class(source: Source | None) -> str:
    """Return the class whose arguments are a script's settings, such as "trl.SFTConfig"; "" for any other source."""
    script = read_script(source) if source is not None else None
    return script.settings_class if script is not None else ""


def parse(source: Source) -> Configuration:
    """Return the literal settings of a script."""
    script = read_script(source)
    entries, notes = script.read_entries() if script is not None else ([], [])
    return Configuration(tuple(entries), tuple(notes))


def add_argument(source: Source, name: str, value: str) -> Edit:
    """Return the edit that adds an argument to its call. Raises `ValueError` if there is not exactly one such call."""
    script = read_script(source)
    if script is None:
        raise ValueError(f"{source.name}: contains no literal settings")
    text = quote_value(value, "python")
    calls = [call for _, call in script.settings_calls]
    if name in MODEL_ARGUMENTS and script.model_calls:
        calls = script.model_calls
        names = [other for other, meaning in MODEL_ARGUMENTS.items() if meaning == MODEL_ARGUMENTS[name]]
        written = [keyword for call in calls for keyword in call.keywords if keyword.arg in names]
        if written and len(calls) == 1:
            return Edit(source.name, (script.find_offset(written[0].value), script.find_end(written[0].value)), text)
    elif name in MODEL_ARGUMENTS:
        name, text = "model_init_kwargs", f'{{"{name}": {text}}}'
    if len(calls) != 1 or any(keyword.arg == name for keyword in calls[0].keywords):
        raise ValueError(f"{name}: {source.name} has no unique place for it")
    return _insert(script, calls[0], f"{name}={text}")


def _insert(script: Script, call: ast.Call, argument: str) -> Edit:
    """Return the edit that adds an argument after the last one, in the same layout."""
    parts: list[ast.AST] = [*call.args, *call.keywords]
    if not parts:
        end = script.find_end(call) - 1
        return Edit(script.source.name, (end, end), argument)
    last = max(parts, key=script.find_end)
    end, start = script.find_end(last), script.find_offset(last)
    before = script.source.text[script.source.text.rfind("\n", 0, start) + 1 : start]
    separator = " " if before.strip() else f"\n{before}"
    return Edit(script.source.name, (end, end), f",{separator}{argument}")


def name_argument(source: Source, span: Span, name: str, value: str) -> str:
    """Return an argument with another name and value, in the form of the one at `span`: a keyword or a dict item."""
    is_item = source.text[span[0] : span[0] + 1] in ("'", '"')
    return f'"{name}": {quote_value(value, "python")}' if is_item else f"{name}={quote_value(value, 'python')}"

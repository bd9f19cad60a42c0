"""The settings of each framework that is rehearsed, in the newest release that is known: names, types, defaults."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.core.launch import Source
from attncheck.lint.fields import effects
from attncheck.lint.fields.effects import Effect, find_effect
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.files.configuration import parse_entries
from attncheck.lint.frameworks.verl.tables import find_release
from attncheck.lint.names import load_table
from tests.wheels import fetch_wheel

HARMLESS = Path(__file__).parents[2] / "data" / "harmless_settings.json"
FRAMEWORKS = ("transformers", "trl", "llamafactory", "ms_swift", "axolotl", "openrlhf", "verl")
VERL_CONFIGS = ("ppo_trainer", "sft_trainer_engine")
TEXT_KINDS = ("str", "list", "dict", "any", "none", "union")
# Of a switch or a choice, a name with one of these words is looked at too: what only sends says so in its name.
SUSPICIOUS = (
    (effects.WRITES | effects.MAY_WRITE | effects.OUTPUTS | effects.WRITTEN)
    | (effects.PUSHES | effects.TRACKERS | effects.SAVED)
    | {"bucket", "cloud", "remote", "share", "online", "server", "url", "host", "mirror", "send", "api", "account"}
)


@dataclass(frozen=True)
class Field:
    """One setting: `kind` is "bool", "int", "float", "choice", else a type that can hold text."""

    name: str
    kind: str
    default: Any = None

    @property
    def effect(self) -> Effect:
        """What its name and type say that it does."""
        return find_effect(self.name, "bool" if self.kind == "choice" else self.kind)

    @property
    def is_witness(self) -> bool:
        """Whether somebody has to say what it does: it can hold a place, or its name is one of writing or sending."""
        if self.kind in ("int", "float"):
            return False
        words = {word for part in self.name.split(".") for word in effects.split_words(part)}
        return self.kind not in ("bool", "choice") or bool(words & SUSPICIOUS)

    @property
    def listed_name(self) -> str:
        """Its name in the list of harmless ones: of a long name the last part, with the table of a single word."""
        parts = self.name.split(".")
        return parts[-1] if "_" in parts[-1].strip("_") else ".".join(parts[-2:])


def walk_fields(framework: str) -> Iterator[Field]:
    """Yield the settings of a framework's newest release."""
    if framework == "verl":
        yield from _walk_verl()
        return
    table = load_table(framework)
    newest = list_releases(framework)[-1]
    groups = [table.get(name, {}) for name in ("names", "plugins", "rlhf")]
    groups += [*table.get("classes", {}).values(), *table.get("trainers", {}).values()]
    for group in groups:
        for name, spans in group.items():
            if spans[-1][1] == newest and spans[-1][2] != "argument":  # of a trainer's constructor: no launch sets it
                yield _read_row(framework, name.rpartition(":")[2].lstrip("-"), spans[-1][2:])


def _read_row(framework: str, name: str, row: list[Any]) -> Field:
    if framework == "openrlhf":
        takes, kind, default, choices = row
        return Field(name, "bool" if takes == 0 else "choice" if choices else kind, default)
    kind, default, *choices = row
    kind = "bool" if kind == "bool?" else kind
    is_choice = bool(choices and choices[0]) or ("|" in kind and not any(text in kind for text in TEXT_KINDS))
    return Field(name, "choice" if is_choice else kind, default)


def _walk_verl() -> Iterator[Field]:
    release = find_release(list_releases("verl")[-1])
    for config in VERL_CONFIGS:
        for name, default in release.schema(config).items():
            if not name.endswith("._target_"):  # Hydra's: the class that a table is of
                yield Field(name, type(default).__name__ if default is not None else "none", default)


def load_harmless(*parts: str) -> Mapping[str, str]:
    """Return the settings that do nothing but what a job's arithmetic needs, each with the reason.

    The "tables" of names hold them, or nothing but the "wheels": what is nested in a setting, or another engine's.
    """
    content = json.loads(HARMLESS.read_text())
    lists = [content[part] for part in parts or ("tables", "wheels")]
    return {name: reason for reasons in lists for reason, names in reasons.items() for name in names}


def list_unclassified(fields: Iterator[Field] | list[Field], cut: Mapping[str, str]) -> list[str]:
    """Return the settings of which nobody says what they do: no word of theirs, no cut, no list."""
    harmless = load_harmless()
    return sorted(
        {
            field.name
            for field in fields
            if field.is_witness and not field.effect and field.name not in cut and field.listed_name not in harmless
        }
    )


# Where a wheel says what its trainings take: dataclasses and models of settings, argparse's options, YAML files.
SOURCES = {
    "trl": r"trl/(trainer/(sft|dpo|model|base)\w*_config|scripts/(sft|dpo|utils))\.py",
    "llamafactory": r"llamafactory/hparams/\w+_args\.py",
    "ms_swift": r"swift/(arguments/(base_args/\w+|sft_args|pretrain_args|tuner_args)|trainers/arguments)\.py",
    "axolotl": r"axolotl/(utils/schemas/\w+|integrations/[\w/]+/args)\.py",
    "openrlhf": r"(?:[\w.-]+/purelib/)?openrlhf/cli/train_(sft|dpo|ppo_ray)\.py",
    "verl": r"verl/trainer/config/(?!_generated|(\w+/)?\w*(megatron|veomni|torchtitan|automodel|npu|eval|gen))"
    r"[\w/]+\.yaml",
}
DISTRIBUTIONS = {"ms_swift": "ms-swift"}


def walk_wheel(framework: str) -> Iterator[Field]:
    """Yield the settings that a framework's newest wheel defines, read in its own files."""
    wheel = fetch_wheel(DISTRIBUTIONS.get(framework, framework), list_releases(framework)[-1])
    for path in sorted(wheel.names):
        if re.fullmatch(SOURCES[framework], path):
            yield from _walk_yaml(wheel.read(path)) if path.endswith(".yaml") else _walk_python(wheel.read(path))


def _walk_python(text: str) -> Iterator[Field]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield Field(statement.target.id, read_kind(ast.unparse(statement.annotation)))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            flags = [flag.value for flag in node.args if isinstance(flag, ast.Constant)]
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            kind = "bool" if "store" in words.get("action", "") else words.get("type", "str")
            yield from (Field(str(flag).lstrip("-"), "choice" if "choices" in words else kind) for flag in flags)


def read_kind(annotation: str) -> str:
    """Return the kind of a field by its annotation."""
    if re.search(r"Literal|Enum", annotation):
        return "choice"
    kinds = [kind for kind in ("bool", "int", "float") if re.search(rf"\b{kind}\b", annotation)]
    others = set(re.findall(r"\w+", annotation)) - {
        "bool",
        "int",
        "float",
        "None",
        "NoneType",
        "Optional",
        "Union",
        "class",
        "typing",
    }
    return kinds[0] if kinds and not others else "str"


def _walk_yaml(text: str) -> Iterator[Field]:
    for entry in parse_entries(Source("x.yaml", text, "yaml")):
        is_none = entry.value in ("null", "")
        scalar = re.fullmatch(r"(true|false)|-?[\d.]+(?:e-?\d+)?", entry.value, re.IGNORECASE)
        if not entry.name.endswith("_target_"):
            yield Field(entry.name, "none" if is_none else "str" if not scalar else "bool" if scalar[1] else "float")

"""The settings of a launch for a program that reads its options with HfArgumentParser, as its releases read them.

Options of the command override the keys of its configuration file (trl 1.16.0 scripts/utils.py, `TrlParser`: the file's
values replace the defaults of the options). A setting that the available releases have under another name counts under
that name: the intended launch is judged, and its `UnknownSetting` states that the old name is refused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from attncheck.core.job import SettingProblem, UnknownSetting
from attncheck.core.launch import NOWHERE, Launch, Setting, SourceLocation
from attncheck.core.program import Program
from attncheck.lint import arguments
from attncheck.lint.fields.constraints import Constraint, find_constraint
from attncheck.lint.fields.names import ParserOptions, build_parser_options, describe_change
from attncheck.lint.fields.releases import find_closest_name
from attncheck.lint.fields.written import FALSE_WORDS, NULL_WORDS, TRUE_WORDS
from attncheck.lint.files.entry import Entry

CLOSE_MATCH = 0.8
MAX_CHOICES = 20  # shown
# These name the model and the data, so a default does not determine them.
TRAINED_NAMES = frozenset(
    {"stage", "finetuning_type", "pref_loss", "loss_type", "optim", "lr_scheduler_type", "reward_model_type"}
)
REGISTERED_NAMES = frozenset({"template"})  # of registries: a near name is another model's, and releases add names
ARGUMENT_RENAMES = {"tokenizer": ("processing_class",)}  # transformers 4.46.3 trainer.py
Renames = Mapping[str, tuple[str, ...]]  # field -> its names in other releases, "name" or "name=value"; (): removed


class ParsedSetting(NamedTuple):
    """One setting and the field that it sets; the `value` of a switch is "true" or "false"."""

    name: str  # a dotted key of a file stays dotted; "" if no release has it
    value: str
    raw: Setting  # as written in the launch
    is_option: bool  # an option of the command, otherwise a key of the file or an override
    known: bool = True  # whether the available releases have the written name
    new_name: str = ""  # the current "name" or "name=value" of an unknown name
    ambiguous: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParsedSettings:
    """All settings of a launch, and for each field the effective one."""

    options: ParserOptions
    all_settings: tuple[ParsedSetting, ...] = ()
    by_field: Mapping[str, ParsedSetting] = field(default_factory=dict)

    def get_text(self, name: str) -> str:
        """Return the value of a field: the one that the launch sets, or else the default; "" for None."""
        setting = self.by_field.get(name)
        if setting is not None and setting.raw.known:
            return "" if setting.value.lower() in NULL_WORDS else setting.value
        default = self.options.default_value(name)
        return "" if default is None else str(default)

    def get_known_text(self, name: str) -> str:
        """Return the value of a field as `get_text` does; "" if the launch sets it to an unknown value."""
        setting = self.by_field.get(name)
        return self.get_text(name) if setting is None or setting.raw.known else ""

    def is_on(self, name: str) -> bool:
        """Return whether a field's value is true."""
        return self.get_text(name).lower() in TRUE_WORDS

    def get_int(self, name: str, fallback: int) -> int:
        """Return a field's value as an int; `fallback` if it is not one."""
        try:
            return int(float(self.get_text(name)))
        except (ValueError, OverflowError):
            return fallback

    def has_any(self, *names: str) -> bool:
        """Return whether the launch sets any of the fields."""
        return any(name in self.by_field for name in names)

    def find_location(self, *names: str) -> SourceLocation:
        """Return the location of the first of the fields that the launch sets."""
        return next((self.by_field[name].raw.location for name in names if name in self.by_field), SourceLocation())

    def describe_unresolved(self) -> tuple[str, ...]:
        """Return a line for each setting whose value is known only at run time."""
        unresolved = [
            setting.raw
            for setting in self.all_settings
            if not setting.raw.known and setting.name in self.options.any_release
        ]
        return tuple(
            f"{setting.name} {setting.value}".strip() + ": its value is known only at run time"
            for setting in unresolved
        )


def parse_settings(
    launch: Launch, options: ParserOptions, renames: Renames, leading_words: int = 1, ignored: Collection[str] = ()
) -> ParsedSettings:
    """Return the settings of a launch whose options begin after `leading_words`, without the names in `ignored`."""
    options = with_program_defaults(options, launch.program)
    if launch.starts_written_script:
        leading_words = len(launch.words)  # the options are the script's own
    settings = [
        setting
        for setting in _parse_all(launch, options, renames, leading_words)
        if _field_name(setting.raw.name) not in ignored
    ]
    return join_settings(options, settings)


def with_program_defaults(options: ParserOptions, program: Program | None) -> ParserOptions:
    """Return the options with the defaults that the launch's own program gives them."""
    if program is None or program.style != "dataclasses":
        return options
    own = {
        name: option._replace(default=program.options[name].default)
        for name, option in options.current.items()
        if name in program.options and program.options[name].default is not None
    }
    return replace(options, current={**options.current, **own})


def join_settings(options: ParserOptions, all_settings: Sequence[ParsedSetting]) -> ParsedSettings:
    """Return settings as one record: for one field, the last is effective, and a new name overrides an old one."""
    by_field: dict[str, ParsedSetting] = {}
    for setting in all_settings:
        if setting.known:
            by_field[setting.name] = setting
    for setting in all_settings:
        name, equals, value = setting.new_name.partition("=")
        if name and name not in by_field:
            by_field[name] = ParsedSetting(name, value if equals else setting.value, setting.raw, setting.is_option)
    return ParsedSettings(options, tuple(all_settings), by_field)


def _parse_all(launch: Launch, options: ParserOptions, renames: Renames, leading_words: int) -> Iterator[ParsedSetting]:
    """Yield the settings of the file, then those of the command, then those that the program's source fixes."""
    for raw in (*launch.entries, *arguments.parse_overrides(launch.words[leading_words:], launch.source)):
        top = _field_name(raw.name)
        name = raw.name if top in options.current else top if top in options.any_release else ""
        known = top in options.current
        new_name = "" if known else _find_new_name(top, raw.value, options, renames)
        yield ParsedSetting(name, raw.value, raw, False, known, new_name)
    for raw in arguments.parse_options(launch.words[leading_words:], options.arity, launch.source):
        resolved = options.resolve(raw.name)
        known = resolved.available and not resolved.ambiguous
        new_name = (
            ""
            if known or resolved.ambiguous
            else _find_new_name(resolved.name or _field_name(raw.name), raw.value, options, renames)
        )
        name = resolved.name if not resolved.ambiguous else ""
        option = options.find_option(name)
        value = raw.value
        if resolved.negated or (option is not None and option.kind == "bool" and not value):
            value = "false" if resolved.negated else "true"
        yield ParsedSetting(name, value, raw, True, known, new_name, resolved.ambiguous)
    for raw in launch.fixed:
        new_name = raw.name if raw.name in options.current else _find_new_name(raw.name, raw.value, options, renames)
        if new_name:
            yield ParsedSetting(new_name.partition("=")[0], raw.value, raw, False)


def _field_name(text: str) -> str:
    return text.lstrip("-").split(".")[0].split("[")[0].replace("-", "_")


def _find_new_name(name: str, value: str, options: ParserOptions, renames: Renames) -> str:
    """Return the first of a field's new names that the available releases have; "" if there is none.

    A switch that became one value of another field has a new name only if it is on.
    """
    is_off = value.lower() in FALSE_WORDS and bool(value)
    return next(
        (
            new_name
            for new_name in renames.get(name, ())
            if new_name.split("=")[0] in options.current and not (is_off and "=" in new_name)
        ),
        "",
    )


def find_unknown_settings(
    settings: ParsedSettings, versions_at_hand: Mapping[str, str], strict: bool
) -> Iterator[UnknownSetting]:
    """Yield the settings that the parser does not know; if not `strict`, only names that some release had."""
    for setting in settings.all_settings:
        if setting.known:
            continue
        dashes = "--" if setting.is_option else ""
        name = setting.name or _field_name(setting.raw.name)
        changed_in = describe_change(settings.options, name, versions_at_hand)
        if setting.new_name or name in settings.options.any_release:
            new_names = (dashes + setting.new_name.replace("=", " " if dashes else ": "),) if setting.new_name else ()
            near = "" if new_names else settings.options.find_successor(name)
            yield UnknownSetting(
                setting.raw.name, setting.raw.location, new_names, changed_in, dashes + near if near else ""
            )
        elif strict:
            closest = setting.ambiguous[0] if setting.ambiguous else settings.options.find_closest_name(name)
            yield UnknownSetting(setting.raw.name, setting.raw.location, near=dashes + closest if closest else "")


def find_unknown_arguments(launch: Launch, versions: Mapping[str, str], renames: Renames) -> Iterator[UnknownSetting]:
    """Yield the keywords that the program gives a trainer or a configuration which lacks them in these `versions`.

    A class of a package that has no version there is left out, and so is one that its release does not have.
    """
    for argument in launch.arguments:
        package, class_name, name = argument.name.split(".")
        parts = _list_parts(package, class_name, versions)
        if not parts or (launch.starts_written_script and not class_name.endswith("Trainer")):
            continue
        options = build_parser_options(*parts)
        if not build_parser_options(parts[-1]).current or name in options.current or "**" in options.current:
            continue
        config = class_name.removesuffix("Trainer") + "Config" if package == "trl" else "TrainingArguments"
        homes = {class_name: options.current}
        if class_name.endswith("Trainer") and (config_parts := _list_parts(package, config, versions)):
            homes[config] = build_parser_options(*config_parts).current
        candidates = (name, *ARGUMENT_RENAMES.get(name, ()), *renames.get(name, ()))
        now = [f"{home}({new}=…)" for home, known in homes.items() for new in candidates if new in known][:1]
        since = describe_change(options, name, versions)
        yield UnknownSetting(f"{class_name}({name}=…)", argument.location, tuple(now), since)


def _list_parts(
    package: str, class_name: str, versions: Mapping[str, str]
) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return a class and its base of transformers as parts of a parser; () if a version of them is not known."""
    bases = ("transformers", "TrainingArguments") if not class_name.endswith("Trainer") else ()
    if package not in versions or not {*bases[:1]} <= versions.keys():
        return ()
    base = tuple(("transformers", versions["transformers"], (name,)) for name in bases[1:] if name != class_name)
    return (*base, (package, versions[package], (class_name,)))


NO_VALUE = "has no value"  # of an option that needs one
VALUE_KINDS = ("int", "float", "str", "list", "dict")
# HfArgumentParser, by releases of transformers; TRL's own copy since 1.0 (scripts/_hf_argparser.py) does the same.
HF_ARGUMENT_PARSER = (Constraint("transformers 5.23.0 hf_argparser.py:204-247, _parse_dataclass_field", "4.28.1"),)

BOTH_HALVES = "transformers 5.17.0 training_args.py:1752: if self.fp16 and self.bf16: raise ValueError; 4.31.0:1333"
OFF = ("", "[]", "false", "False")
BEST_OF_SHARDS = (
    "transformers 5.23.0 trainer.py:896, create_accelerator_and_postprocess: refuses `save_only_model` along "
    "with `load_best_model_at_end`; 4.40.2:4399"
)
NO_TRACKER = (
    "transformers 5.17.0 integrations/integration_utils.py:2673, get_reporting_integration_callbacks: "
    "{integration} is not supported; 4.31.0 integrations.py does the same"
)
YAML_NULLS = (
    "PyYAML 6.0.4 resolver.py, tag:yaml.org,2002:null: ~, null, Null and NULL; transformers 5.23.0 hf_argparser.py, "
    "parse_dict: passes a file's values to the dataclass as they are"
)
UNCHECKED_KEYS = (
    "transformers 5.23.0 hf_argparser.py, parse_dict: nothing checks a file's keys, so the framework stops at another"
    " value, or goes on without what it asks for"
)


def find_refused_settings(settings: ParsedSettings, transformers: str, is_own: bool = True) -> Iterator[SettingProblem]:
    """Yield the settings that the parser refuses: an option without its required value, a value outside its choices.

    A parser checks the choices of options, and not those of a file's keys: only a program of the framework (`is_own`)
    and TrainingArguments' own `__post_init__` are known to refuse them later. For releases of transformers that were
    not read, only refusals of argparse itself are included. An abbreviated name ("--train") may be another option's.
    """
    halves = [setting for name in ("bf16", "fp16") if (setting := settings.by_field.get(name)) and setting.raw.known]
    if len(halves) == 2 and all(settings.is_on(setting.name) for setting in halves):
        yield SettingProblem(
            "refuses",
            "bf16 and fp16 are both on: ValueError",
            (BOTH_HALVES,),
            halves[1].raw.location,
            {"fp16": "false"},
        )
    is_sharded = (
        name in settings.by_field and settings.get_known_text(name) not in OFF for name in ("deepspeed", "fsdp")
    )
    best = settings.by_field.get("load_best_model_at_end")
    if best and any(is_sharded) and settings.is_on("load_best_model_at_end") and settings.is_on("save_only_model"):
        text = "save_only_model and load_best_model_at_end are both on, with DeepSpeed or FSDP: ValueError"
        yield SettingProblem("refuses", text, (BEST_OF_SHARDS,), best.raw.location, {"save_only_model": "false"})
    is_read = find_constraint(HF_ARGUMENT_PARSER, transformers) is not None
    for setting in settings.all_settings:
        option = settings.options.find_option(setting.name) if setting.known else None
        written = setting.raw.name.lstrip("-").replace("-", "_")
        is_prefix = setting.name.startswith(written) and written != setting.name
        if option is not None and setting.raw.known and not is_prefix:
            is_dated = settings.options.any_release.get(setting.name, ("",))[0] != "transformers"
            choices = option.choices if is_own or setting.is_option or not is_dated else ()
            evidence = HF_ARGUMENT_PARSER[0].evidence if setting.is_option or not is_dated else UNCHECKED_KEYS
            for problem in _check_value(setting, option.kind, choices, str(option.default), evidence):
                if is_read or problem.universal:
                    yield problem if is_dated else replace(problem, refused_value="")


def find_missing_values(options: Iterable[tuple[Setting, str]]) -> Iterator[SettingProblem]:
    """Yield the options without a value whose kind needs one; HfArgumentParser gives only a bool its value."""
    for setting, kind in options:
        is_empty = setting.known and not setting.value and setting.value_span == NOWHERE  # --output_dir="" has a span
        if is_empty and setting.name.startswith("--") and (kind in VALUE_KINDS or "|" in kind):
            text, evidence = f"{setting.name} {NO_VALUE}: it needs a value", HF_ARGUMENT_PARSER[0].evidence
            yield SettingProblem("refuses", text, (evidence,), setting.location, universal=True)


def _check_value(
    setting: ParsedSetting, kind: str, choices: tuple[str, ...], default: str, evidence: str
) -> Iterator[SettingProblem]:
    name, value, location = setting.raw.name, setting.value.lower(), setting.raw.location
    if setting.is_option and not setting.value and setting.raw.value_span != NOWHERE:
        return  # --output_dir="": argparse accepts the empty text
    if setting.is_option and not setting.value and kind != "bool":
        is_optional = kind == "bool?"
        reason = "its default is None, so it is not a switch" if is_optional else "it needs a value"
        sets = {setting.name: "true"} if is_optional else {}
        text = f"{name} {NO_VALUE}: {reason}"
        yield SettingProblem("refuses", text, (evidence,), location, sets, universal=not is_optional)
    elif setting.is_option and setting.name == "report_to" and value == "none" != setting.value:
        text = f"{name} is {setting.value!r}, which is taken for the name of a tracker: ValueError"
        yield SettingProblem("refuses", text, (NO_TRACKER,), location, {setting.name: value}, universal=True)
    elif (
        kind in ("bool", "bool?") and value == "none" and isinstance(setting.raw, Entry) and setting.raw.kind == "yaml"
    ):
        text = f"{name}: {setting.value} is a text in YAML, which counts as true; null is null"
        yield SettingProblem("replaces", text, (YAML_NULLS,), location, {setting.name: "null"})
    elif kind in ("bool", "bool?") and value not in TRUE_WORDS | FALSE_WORDS | NULL_WORDS:
        yield SettingProblem(
            "refuses", f"{name} is {setting.value!r}, which is neither true nor false", (evidence,), location
        )
    elif choices and setting.value not in choices and value not in NULL_WORDS:
        more = f" and {len(choices) - MAX_CHOICES} more" if len(choices) > MAX_CHOICES else ""
        text = f"{name} is {setting.value!r}; it takes {', '.join(choices[:MAX_CHOICES])}{more}"
        is_registered = setting.name in REGISTERED_NAMES
        near = [] if is_registered else list(filter(None, [find_closest_name(setting.value, choices, CLOSE_MATCH)]))
        refused = "" if near else setting.value  # a misspelling belongs to no other release
        near += [default] if default in choices and setting.name not in TRAINED_NAMES else []
        sets = {setting.name: near[0]} if near else {}
        problem = SettingProblem("refuses", text, (evidence,), location, sets, refused_value=refused)
        yield replace(problem, is_registered=is_registered, mild=is_registered)  # a fork's registry may have it

"""Translates the name and the values of an OpenRLHF setting between releases.

`resolve_option` reads a written name as argparse does: whole names and unique prefixes. `translate_option` converts a
setting to the dotted names of the newest release, and from there to those of the requested one.

Source: attncheck/lint/names/openrlhf.json, made from the parsers of the wheels 0.5.0 to 0.11.2; each change of values
is cited where it is applied.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from attncheck.lint.fields import find_closest_name, is_at_least, releases
from attncheck.lint.frameworks.openrlhf import tables
from attncheck.lint.names import load_table

TRAINER_FILES = {"ppo": "ppo_ray"}  # trainer -> the end of its file's name, if different
NamedValues = tuple[str, tuple[str, ...]]  # a name without dashes, and its values
AllOptions = Mapping[str, tuple[str, ...]]  # name without dashes -> values, for a whole launch
CORRECTIONS = {
    "tis": ("token", "clip"),
    "icepop": ("token", "mask"),
    "seq-mask-tis": ("seq", "mask"),
}  # type -> level, mode


class OptionSpec(NamedTuple):
    """One option of one release's parser."""

    nargs: int | str  # number of values; "*" for any number, "+" for at least one
    type: str  # "int", "float", "str"; "" for a switch
    default: Any
    choices: tuple[str, ...]


list_releases = partial(releases.list_releases, "openrlhf")  # whose parsers were read, the oldest first
find_release = partial(releases.find_release, "openrlhf")  # the newest release read that is not newer than a version


@cache
def option_lifetimes(trainer: str) -> Mapping[str, tuple[tuple[int, int, OptionSpec], ...]]:
    """Return name without dashes -> (first release, last release, option), by index in `list_releases`."""
    release_index = {version: index for index, version in enumerate(list_releases())}
    rows = load_table("openrlhf")["trainers"].get(TRAINER_FILES.get(trainer, trainer), {})
    return {
        name[2:]: tuple(
            (release_index[first], release_index[last], OptionSpec(nargs, type_name, default, tuple(choices or ())))
            for first, last, nargs, type_name, default, choices in spans
        )
        for name, spans in rows.items()
        if name.startswith("--")
    }


@cache
def parser_options(trainer: str, version: str) -> Mapping[str, OptionSpec]:
    """Return a trainer's options in a release; for a trainer that was removed, those of its last release."""
    first, last = _trainer_span(trainer)
    index = min(max(list_releases().index(find_release(version)), first), last)
    spans = ((name, span) for name, rows in option_lifetimes(trainer).items() for span in rows)
    return {name: option for name, (since, until, option) in spans if since <= index <= until}


@cache
def list_trainers() -> tuple[str, ...]:
    """Return the trainers of all releases."""
    files = {file: trainer for trainer, file in TRAINER_FILES.items()}
    return tuple(files.get(file, file) for file in load_table("openrlhf")["trainers"] if file != "ppo")


@cache
def required_packages(version: str) -> dict[str, str]:
    """Return distribution -> the release's requirement ("==5.15.0"); vllm's comes from the extra that installs it."""
    release_index = list_releases().index(find_release(version))
    index_of = {release: index for index, release in enumerate(list_releases())}
    rows = ((name, row) for name, rows in load_table("openrlhf")["requires"].items() for row in rows)
    return {name: value for name, (first, last, value) in rows if index_of[first] <= release_index <= index_of[last]}


def trainer_lifetime(trainer: str) -> tuple[str, str]:
    """Return the first and the last release with a trainer."""
    first, last = _trainer_span(trainer)
    return list_releases()[first], list_releases()[last]


@cache
def _trainer_span(trainer: str) -> tuple[int, int]:
    spans = [span for rows in option_lifetimes(trainer).values() for span in rows]
    return min(first for first, _, _ in spans), max(last for _, last, _ in spans)


def has_trainer(trainer: str, version: str) -> bool:
    """Return whether a release has a trainer."""
    first, last = _trainer_span(trainer)
    return first <= list_releases().index(find_release(version)) <= last


def has_option(trainer: str, version: str, name: str) -> bool:
    """Return whether a trainer has an option in a release."""
    return name in parser_options(trainer, version)


@cache
def resolve_option(trainer: str, version: str, written_name: str) -> tuple[str, bool]:
    """Return the full name of a written option ("" if no release has it), and whether this release accepts it.

    argparse accepts a prefix of a single option (`allow_abbrev`, its default), and refuses one of several.
    """
    name = written_name.removeprefix("--")
    release_options = parser_options(trainer, version)
    for options in (release_options, option_lifetimes(trainer)):
        matches = [name] if name in options else [option for option in options if option.startswith(name)]
        if len(matches) == 1:
            return matches[0], options is release_options
    return "", False


def find_nargs(trainer: str, version: str, written_name: str) -> int | str | None:
    """Return the number of values of a written option; None if no release has it."""
    name, _ = resolve_option(trainer, version, written_name)
    if not name:
        return None
    option = parser_options(trainer, version).get(name)
    return option.nargs if option else option_lifetimes(trainer)[name][-1][2].nargs


def find_change_release(trainer: str, version: str, name: str) -> str:
    """Return the release that removed a name unknown to `version`, or the later one that adds it; "" if none."""
    release_index = list_releases().index(find_release(version))
    spans = option_lifetimes(trainer).get(name, ())
    removed_at = [last for _, last, _ in spans if last < release_index]
    added_at = [first for first, _, _ in spans if first > release_index]
    if removed_at:
        return list_releases()[max(removed_at) + 1]
    return list_releases()[min(added_at)] if added_at else ""


def suggest_option(trainer: str, version: str, name: str) -> str:
    """Return the option of this release that is spelled most like `name`, with its dashes; or ""."""
    closest = find_closest_name(name, parser_options(trainer, version), 0.75)
    return f"--{closest}" if closest else ""


def translate_option(
    trainer: str, version: str, option: NamedValues, all_options: AllOptions
) -> tuple[NamedValues, ...]:
    """Return a setting of any release in the names and values of `version`; () if it has no equivalent.

    `all_options` are needed because some settings are merged with others.
    """
    new_options: list[NamedValues] = []
    for newest in to_newest_names(trainer, option, all_options):
        new_options += from_newest_name(trainer, version, newest, all_options)
    return tuple(dict.fromkeys(new_options))


def to_newest_names(trainer: str, option: NamedValues, all_options: AllOptions) -> list[NamedValues]:
    """Return a setting in the names and values of the newest release; unchanged if no table has it."""
    name, values = option
    if name == "flash_attn":
        return [("ds.attn_implementation", ("flash_attention_2",))]
    if name == "bf16":
        return [("ds.param_dtype", ("bf16",))]
    if trainer == "ppo":
        ppo_options = _ppo_to_newest_names(name, values, all_options)
        if ppo_options is not None:
            return ppo_options
    return [(newest, values) for newest in tables.dotted_names(trainer).get(name, (name,))]


def _ppo_to_newest_names(name: str, values: tuple[str, ...], all_options: AllOptions) -> list[NamedValues] | None:
    if name == "use_kl_estimator_k3":
        return [("algo.kl.estimator", ("k3",))]
    if name in ("prompt_max_len", "generate_max_len"):
        return _sum_of_lengths(name, values, all_options)
    if name == "vllm_is_truncated_threshold" and len(values) == 1:  # clamp(max=…), 0.9.0 models/loss.py:146
        return [("algo.advantage.is_correction_threshold", ("0", *values))]
    if name in (*CORRECTION_SWITCHES, *CORRECTION_TYPES, "use_icepop"):
        return _correction_level_and_mode(all_options) if _has_correction_switch(all_options) else []
    return None


CORRECTION_SWITCHES = ("enable_vllm_is_correction", "algo.advantage.is_correction_enable")
CORRECTION_TYPES = ("vllm_is_correction_type", "algo.advantage.is_correction_type")
CORRECTION_LEVEL, CORRECTION_MODE = "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"


def _has_correction_switch(all_options: AllOptions) -> bool:
    return any(switch in all_options for switch in CORRECTION_SWITCHES)


def _correction_level_and_mode(all_options: AllOptions) -> list[NamedValues]:
    """Return level and mode for a type; the formulas of 0.11.1 models/loss.py:198-217 and 0.11.2 :216-241 agree.

    "tis" clamps the token's ratio, "icepop" drops tokens outside the bounds, and "seq-mask-tis" ("mis" in 0.9.3) drops
    rows.
    """
    default_type = "icepop" if "use_icepop" in all_options else "tis"
    correction_type = next((all_options[name][0] for name in CORRECTION_TYPES if all_options.get(name)), default_type)
    level, mode = CORRECTIONS.get("seq-mask-tis" if correction_type == "mis" else correction_type, ("token", "mask"))
    return [(CORRECTION_LEVEL, (level,)), *([(CORRECTION_MODE, (mode,))] if mode == "clip" else [])]


def _sum_of_lengths(name: str, values: tuple[str, ...], all_options: AllOptions) -> list[NamedValues]:
    """Return the one length in tokens that replaces two up to 0.9.7: prompt and answer, 1024 each by default."""
    answer_option = [("rollout.max_new_tokens", values)] if name == "generate_max_len" else []
    lengths = [(all_options.get(option) or ("1024",))[0] for option in ("prompt_max_len", "generate_max_len")]
    if "max_len" in all_options or not all(length.isdecimal() and len(length) < 10 for length in lengths):
        return answer_option  # --max_len overrode the sum (0.9.7 cli/train_ppo_ray.py)
    return [("data.max_len", (str(sum(map(int, lengths))),)), *answer_option]


def from_newest_name(trainer: str, version: str, option: NamedValues, all_options: AllOptions) -> list[NamedValues]:
    """Return a setting of the newest names in the names and values of `version`; empty if it has no equivalent."""
    name, values = option
    value = values[0] if values else ""
    if not is_at_least(version, tables.FIRST_CORRECTION_LEVEL) and name in (CORRECTION_LEVEL, CORRECTION_MODE):
        return _correction_switch_and_type(trainer, version, all_options)
    if is_at_least(version, tables.FIRST_DOTTED):
        return [option] if has_option(trainer, version, name) else []
    if name == "ds.attn_implementation" and not is_at_least(version, tables.FIRST_ATTN_IMPLEMENTATION):
        return [("flash_attn", ())] if value == "flash_attention_2" else []
    if name == "ds.param_dtype" and not is_at_least(version, tables.FIRST_PARAM_DTYPE):
        return [("bf16", ())] if value == "bf16" else []
    if trainer == "ppo" and not is_at_least(version, tables.FIRST_SINGLE_LENGTH):
        if name == "rollout.max_new_tokens":
            return [("generate_max_len", values)]
        answer_names = ("rollout.max_new_tokens", "max_new_tokens", "generate_max_len")
        answer_length = next((all_options[key][0] for key in answer_names if all_options.get(key)), "1024")
        are_numbers = all(text.isdecimal() and len(text) < 10 for text in (value, answer_length))
        if name == "data.max_len" and are_numbers and int(value) > int(answer_length):
            return [("prompt_max_len", (str(int(value) - int(answer_length)),))]
    candidates = (*tables.flat_names(trainer).get(name, ()), name)
    local_name = next((candidate for candidate in candidates if has_option(trainer, version, candidate)), "")
    return [(local_name, _fit_bounds(trainer, version, local_name, values))] if local_name else []


def _fit_bounds(trainer: str, version: str, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return bounds in a release's form: only the upper one up to 0.9.0, both up to 0.11.1."""
    nargs = parser_options(trainer, version)[name].nargs
    if name != "vllm_is_truncated_threshold" or nargs == len(values):
        return values
    return values[-1:] if nargs == 1 else ("0", *values)


def _correction_switch_and_type(trainer: str, version: str, all_options: AllOptions) -> list[NamedValues]:
    """Return the switch and the type that expressed a level and a mode before 0.11.2."""
    has_switch = _has_correction_switch(all_options)
    newest = dict(_correction_level_and_mode(all_options)) if has_switch else all_options
    level, mode = (newest.get(CORRECTION_LEVEL) or ("off",))[0], (newest.get(CORRECTION_MODE) or ("mask",))[0]
    correction_type = next(
        (correction_type for correction_type, level_and_mode in CORRECTIONS.items() if level_and_mode == (level, mode)),
        "",
    )
    if not correction_type:
        return []
    names = [name for name in (*CORRECTION_SWITCHES, *CORRECTION_TYPES) if has_option(trainer, version, name)]
    switches = [(name, ()) for name in names if name in CORRECTION_SWITCHES]
    types: list[NamedValues] = [
        (name, (correction_type,)) for name in names if name in CORRECTION_TYPES and correction_type != "tis"
    ]
    return [*switches, *types] if switches and (types or correction_type == "tis") else []

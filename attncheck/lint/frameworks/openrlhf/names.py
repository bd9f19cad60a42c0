"""How a setting of OpenRLHF of any release is called, and with what value, in another release.

`given` reads a command as argparse does: whole names, unique prefixes, "--name=value", as many values as the release's
parser takes. `translated` goes by the dotted names of the newest release and returns those of the asked one.

Source: knowledge/names/openrlhf.json, made of the parsers of the wheels 0.5.0 to 0.11.2; the change of values
is cited where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from attncheck.lint.fields import releases as known
from attncheck.lint.fields.releases import reaches
from attncheck.lint.frameworks.openrlhf import tables as renamed
from attncheck.lint.names import table

FILES = {"ppo": "ppo_ray"}  # trainer -> the tail of its file, where the two differ
Named = tuple[str, tuple[str, ...]]  # a name without dashes, and its values
IS_TYPES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}


@dataclass(frozen=True)
class Option:
    """One option of one release's parser."""

    takes: int | str  # how many values; "*" any number, "+" at least one
    type: str  # "int", "float", "str"; "" for a switch
    default: Any
    choices: tuple[str, ...]


def releases() -> tuple[str, ...]:
    """Return the releases whose parsers were read, the oldest first."""
    return known.versions("openrlhf")


def release(version: str) -> str:
    """Return the newest release read that is not newer than `version`; the newest where it is no version."""
    return known.release("openrlhf", version)


@cache
def lifetimes(trainer: str) -> Mapping[str, tuple[tuple[int, int, Option], ...]]:
    """Return name without dashes -> (first release, last release, option), the releases by their number."""
    number = {each: index for index, each in enumerate(releases())}
    rows = table("openrlhf")["trainers"].get(FILES.get(trainer, trainer), {})
    return {
        name[2:]: tuple(
            (number[first], number[last], Option(takes, kind, default, tuple(choices or ())))
            for first, last, takes, kind, default, choices in spans
        )
        for name, spans in rows.items()
        if name.startswith("--")
    }


@cache
def options(trainer: str, version: str) -> Mapping[str, Option]:
    """Return the options that a trainer has in a release; of a trainer that is gone from it, those it had last."""
    first, last = _lifetime(trainer)
    return _at(trainer, min(max(releases().index(release(version)), first), last))


def _at(trainer: str, at: int) -> dict[str, Option]:
    spans = ((name, span) for name, rows in lifetimes(trainer).items() for span in rows)
    return {name: option for name, (first, last, option) in spans if first <= at <= last}


@cache
def trainers() -> tuple[str, ...]:
    """Return the trainers that some release has."""
    files = {file: trainer for trainer, file in FILES.items()}
    return tuple(files.get(file, file) for file in table("openrlhf")["trainers"] if file != "ppo")


def requires(version: str) -> dict[str, str]:
    """Return distribution -> what a release requires of it ("==5.15.0"), vllm's with the extra that brings it."""
    at = releases().index(release(version))
    number = {each: index for index, each in enumerate(releases())}
    rows = ((name, row) for name, rows in table("openrlhf")["requires"].items() for row in rows)
    return {name: specifier for name, (first, last, specifier) in rows if number[first] <= at <= number[last]}


def lifetime(trainer: str) -> tuple[str, str]:
    """Return the first and the last release that has a trainer."""
    first, last = _lifetime(trainer)
    return releases()[first], releases()[last]


def _lifetime(trainer: str) -> tuple[int, int]:
    spans = [span for rows in lifetimes(trainer).values() for span in rows]
    return min(first for first, _, _ in spans), max(last for _, last, _ in spans)


def offers(trainer: str, version: str) -> bool:
    """Say whether a release has a trainer."""
    first, last = _lifetime(trainer)
    return first <= releases().index(release(version)) <= last


def has(trainer: str, version: str, name: str) -> bool:
    """Say whether a trainer of a release has an option."""
    return name in options(trainer, version)


def resolved(trainer: str, version: str, written: str) -> tuple[str, bool]:
    """Return the whole name of what was written, "" where no release has it, and whether this release takes it.

    argparse takes a name that begins only one of its options (`allow_abbrev`, its default); several: it refuses.
    """
    name = written.removeprefix("--")
    here = options(trainer, version)
    for names in (here, lifetimes(trainer)):
        alike = [name] if name in names else [each for each in names if each.startswith(name)]
        if len(alike) == 1:
            return alike[0], names is here
    return "", False


def takes(trainer: str, version: str, written: str) -> int | str | None:
    """Return how many values an option takes, None where no release has it."""
    name, _ = resolved(trainer, version, written)
    if not name:
        return None
    here = options(trainer, version).get(name)
    return here.takes if here else lifetimes(trainer)[name][-1][2].takes


def since(trainer: str, version: str, name: str) -> str:
    """Return the release in which a name went that `version` has no more, or came that it does not have yet."""
    at = releases().index(release(version))
    rows = lifetimes(trainer).get(name, ())
    gone = [last for _, last, _ in rows if last < at]
    came = [first for first, _, _ in rows if first > at]
    if gone:
        return releases()[max(gone) + 1]
    return releases()[min(came)] if came else ""


def near(trainer: str, version: str, name: str) -> str:
    """Return the option of this release that is spelled most like `name`, with its dashes, or ""."""
    found = get_close_matches(name, list(options(trainer, version)), 1, 0.75)
    return f"--{found[0]}" if found else ""


def translated(trainer: str, version: str, one: Named, all_: Mapping[str, tuple[str, ...]]) -> tuple[Named, ...]:
    """Return what a setting of any release is in the names and values of `version`; () where it has nothing like it.

    `all_` are all settings of the launch: some become one together with others.
    """
    found: list[Named] = []
    for each in modern(trainer, one, all_):
        found += _local(trainer, version, each, all_)
    return tuple(dict.fromkeys(found))


def modern(trainer: str, one: Named, all_: Mapping[str, tuple[str, ...]]) -> list[Named]:
    """Return a setting in the names and values of the newest release, as far as they lead there."""
    name, values = one
    if name == "flash_attn":
        return [("ds.attn_implementation", ("flash_attention_2",))]
    if name == "bf16":
        return [("ds.param_dtype", ("bf16",))]
    if trainer == "ppo":
        special = _modern_ppo(name, values, all_)
        if special is not None:
            return special
    return [(each, values) for each in renamed.dotted(trainer).get(name, (name,))]


def _modern_ppo(name: str, values: tuple[str, ...], all_: Mapping[str, tuple[str, ...]]) -> list[Named] | None:
    if name == "use_kl_estimator_k3":
        return [("algo.kl.estimator", ("k3",))]
    if name in ("prompt_max_len", "generate_max_len"):
        return _lengths(name, values, all_)
    if name == "vllm_is_truncated_threshold" and len(values) == 1:  # clamp(max=…), 0.9.0 models/loss.py:146
        return [("algo.advantage.is_correction_threshold", ("0", *values))]
    if name in (*ENABLE, *TYPE, "use_icepop"):
        return _correction(all_) if any(each in all_ for each in ENABLE) else []
    return None


ENABLE = ("enable_vllm_is_correction", "algo.advantage.is_correction_enable")
TYPE = ("vllm_is_correction_type", "algo.advantage.is_correction_type")
LEVEL, MODE = "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"


def _correction(all_: Mapping[str, tuple[str, ...]]) -> list[Named]:
    """Return level and mode for a type: the formulas of 0.11.1 models/loss.py:198-217 and 0.11.2 :216-241 agree.

    "tis" clamps the token's ratio, "icepop" drops tokens outside the bounds, "seq-mask-tis" ("mis" in 0.9.3) rows.
    """
    kind = next((all_[name][0] for name in TYPE if all_.get(name)), "icepop" if "use_icepop" in all_ else "tis")
    level, mode = IS_TYPES.get("seq-mask-tis" if kind == "mis" else kind, ("token", "mask"))
    return [(LEVEL, (level,)), *([(MODE, (mode,))] if mode == "clip" else [])]


def _lengths(name: str, values: tuple[str, ...], all_: Mapping[str, tuple[str, ...]]) -> list[Named]:
    """Return the one length that two made up to 0.9.7: prompt and answer, 1024 tokens each where not written."""
    answer = [("rollout.max_new_tokens", values)] if name == "generate_max_len" else []
    parts = [(all_.get(each) or ("1024",))[0] for each in ("prompt_max_len", "generate_max_len")]
    if "max_len" in all_ or not all(part.isdigit() for part in parts):
        return answer  # --max_len overruled the sum (0.9.7 cli/train_ppo_ray.py)
    return [("data.max_len", (str(sum(map(int, parts))),)), *answer]


def _local(trainer: str, version: str, one: Named, all_: Mapping[str, tuple[str, ...]]) -> list[Named]:
    """Return a setting of the newest names in those of `version`."""
    name, values = one
    value = values[0] if values else ""
    if not reaches(version, renamed.LEVELS) and name in (LEVEL, MODE):
        return _older_correction(trainer, version, all_)
    if reaches(version, renamed.FIRST_DOTTED):
        return [one] if has(trainer, version, name) else []
    if name == "ds.attn_implementation" and not reaches(version, renamed.IMPLEMENTATION_NAMED):
        return [("flash_attn", ())] if value == "flash_attention_2" else []
    if name == "ds.param_dtype" and not reaches(version, renamed.DTYPE_NAMED):
        return [("bf16", ())] if value == "bf16" else []
    if trainer == "ppo" and not reaches(version, renamed.ONE_LENGTH):
        if name == "rollout.max_new_tokens":
            return [("generate_max_len", values)]
        written = (all_.get(each) for each in ("rollout.max_new_tokens", "max_new_tokens", "generate_max_len"))
        answer = next((values[0] for values in written if values), "1024")
        if name == "data.max_len" and value.isdigit() and answer.isdigit() and int(value) > int(answer):
            return [("prompt_max_len", (str(int(value) - int(answer)),))]
    flat = (*renamed.flat(trainer).get(name, ()), name)
    return next(
        ([(each, _as_many(trainer, version, each, values))] for each in flat if has(trainer, version, each)), []
    )


def _as_many(trainer: str, version: str, name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return bounds as a release takes them: up to 0.9.0 the upper one alone, up to 0.11.1 both."""
    wanted = options(trainer, version)[name].takes
    if name != "vllm_is_truncated_threshold" or wanted == len(values):
        return values
    return values[-1:] if wanted == 1 else ("0", *values)


def _older_correction(trainer: str, version: str, all_: Mapping[str, tuple[str, ...]]) -> list[Named]:
    """Return the switch and the type that a level and a mode were before 0.11.2."""
    wanted = dict(_correction(all_)) if any(each in all_ for each in ENABLE) else all_
    level, mode = (wanted.get(LEVEL) or ("off",))[0], (wanted.get(MODE) or ("mask",))[0]
    kind = next((kind for kind, made in IS_TYPES.items() if made == (level, mode)), "")
    if not kind:
        return []
    names = [name for name in (*ENABLE, *TYPE) if has(trainer, version, name)]
    switch = [(name, ()) for name in names if name in ENABLE]
    typed: list[Named] = [(name, (kind,)) for name in names if name in TYPE and kind != "tis"]
    return [*switch, *typed] if switch and (typed or kind == "tis") else []


def local(
    trainer: str, version: str, name: str, values: Sequence[str], all_: Mapping[str, tuple[str, ...]]
) -> tuple[Named, ...]:
    """Return a setting of the newest names in those of `version`."""
    return tuple(_local(trainer, version, (name, tuple(values)), all_))

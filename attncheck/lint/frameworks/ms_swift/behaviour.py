"""What ms-swift does with settings that it cannot serve: each function is one behaviour, read in its wheels.

Lines are those of 4.6.0. What can be told without knowing the framework (sizes against the world, an implementation
in which sequence parallelism does not take place, missing packages) is judged by rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attncheck.core.arithmetic import largest_divisor
from attncheck.core.facts import Known
from attncheck.core.job import Consequence, SettingProblem
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.values import Values

SEQUENCE = "sequence_parallel/sequence_parallel.py"


def objections(values: Values) -> tuple[SettingProblem, ...]:
    """Return what the release does with the settings."""
    return tuple(each for behaviour in BEHAVIOURS for each in behaviour(values))


def _says(
    v: Values, consequence: Consequence, message: str, where: str, *at: str, **others: Any
) -> Iterator[SettingProblem]:
    """Yield an objection at the first written of the settings `at`."""
    yield SettingProblem(consequence, message, (f"ms-swift 4.6.0 {where}",), v.place(*at), **others)


def _packing(v: Values) -> str:
    return "packing" if v.on("packing") else "padding_free"


def packing_without_flash(v: Values) -> Iterator[SettingProblem]:
    """Packing and padding_free ask for one of the flash implementations by name."""
    asked = v.get("attn_impl")
    if not v.packed or asked in ms_swift.packs_with(v.version) or _hidden(v, "attn_impl"):
        return
    message = f"{_packing(v)} with attn_impl {asked or 'not written'}: it asks for a flash implementation by name"
    where = f'arguments/sft_args.py:194: The "{_packing(v)}" feature requires a flash attention implementation'
    sets = {"attn_implementation": "flash_attention_2"}
    yield from _says(v, "refuses", message, where, "attn_impl", "packing", "padding_free", sets=sets)


def _hidden(v: Values, name: str) -> bool:
    return name in v.given and not v.given[name].known


def kinds_of_training(v: Values) -> Iterator[SettingProblem]:
    """Some kinds of preference learning take no packing, and most no sequence parallelism."""
    if v.kind != "rlhf":
        return
    types = tuple(t for t in ms_swift.PADDING_FREE if t != "kto" or v.reaches(ms_swift.DERIVED_RING))
    if v.packed and v.trainer not in types:
        where = f"arguments/rlhf_args.py:713: The current rlhf_type '{v.trainer}' does not support padding_free/packing"
        sets = {"packing": "off"}
        yield from _says(v, "refuses", f"rlhf_type {v.trainer} with {_packing(v)}", where, _packing(v), sets=sets)
    if v.size > 1 and v.trainer not in ms_swift.SEQUENCE_PARALLEL:
        where = f"arguments/rlhf_args.py:721: The current rlhf_type '{v.trainer}' does not support sequence_parallel"
        message = f"rlhf_type {v.trainer} with sequence_parallel_size {v.size}"
        yield from _says(v, "refuses", message, where, "sequence_parallel_size", sets={"ring_size": "1"})
    if v.trainer == "grpo" and v.on("use_liger_kernel"):
        for on, name, sets in (
            (v.size > 1, "sequence_parallel_size", {"ring_size": "1"}),
            (v.packed, _packing(v), {"packing": "off"}),
        ):
            if on:
                where = "arguments/rlhf_args.py:551: Liger loss does not support sequence parallel, padding free yet"
                yield from _says(v, "refuses", f"GRPO with Liger's loss and {name}", where, name, sets=sets)


def derived_ring(v: Values) -> Iterator[SettingProblem]:
    """Where the size does not divide the key/value heads the rest becomes a ring, which asks for more."""
    if v.ring < 2 or v.model is None:
        return
    size, at = f"sequence_parallel_size {v.size}", ("sequence_parallel_size",)
    made = f"{size} becomes Ulysses over {v.ulysses} and a ring over {v.ring} ranks"
    smaller = {"ring_size": str(v.ulysses)}
    recurrent = "linear_attention" in v.model.layer_types
    if recurrent and v.model.model_type.startswith("qwen3_5") and v.reaches(ms_swift.QWEN3_5_SEQUENCE):
        where = "model/models/qwen.py:1602: does not support derived ring attention"
        yield from _says(v, "refuses", f"{made}, which Qwen3.5's recurrent layers refuse", where, *at, sets=smaller)
        return
    if not v.packed:
        where = f"{SEQUENCE}:378: needs ulysses/ring-attention, which needs --padding_free true"
        yield from _says(v, "refuses", f"{made}, which asks for padding_free", where, *at, sets=smaller)
    elif v.asked == "sdpa":
        where = f"{SEQUENCE}:264: SDPA does not support Ring attention"
        sets = {"attn_implementation": "flash_attention_2"}
        yield from _says(v, "refuses", f"{made}, which sdpa does not have", where, "attn_impl", *at, sets=sets)
    if isinstance(v.model.sliding_window, Known):
        window = v.model.sliding_window.value
        where = f"{SEQUENCE}:218: window_size=sliding_window, a number where flash-attn unpacks a pair"
        message = f"{made}, which is given the model's window of {window} as a number: TypeError"
        yield from _says(v, "refuses", message, where, *at, sets=smaller)


def heads_of_old_releases(v: Values) -> Iterator[SettingProblem]:
    """Before 3.9 Ulysses alone: the ranks must divide the heads."""
    if v.size < 2 or v.reaches(ms_swift.DERIVED_RING) or v.environ.get("SEQUENCE_PARALLEL_IMPL") == "ring_attention":
        return
    heads = v.model.num_heads if v.model is not None else None
    if isinstance(heads, Known) and heads.value % v.size:
        message = f"sequence_parallel_size {v.size} does not divide {heads.value} heads"
        where = "(3.8.3) trainers/sequence_parallel/ulysses.py:41: Number of heads must be divisible"
        fits = largest_divisor(heads.value, v.size)
        yield from _says(v, "refuses", message, where, "sequence_parallel_size", sets={"ring_size": str(fits)})


def padding_side(v: Values) -> Iterator[SettingProblem]:
    """Sequence parallelism takes rows that are padded on the right."""
    if v.size > 1 and not v.packed and v.get("padding_side") == "left":
        where = 'template/base.py:2078: padding_side must be "right" when … sequence_parallel_size > 1'
        message = f"padding_side left with sequence_parallel_size {v.size}"
        yield from _says(v, "refuses", message, where, "padding_side", sets={"padding_side": "right"})


def lazy_tokenize(v: Values) -> Iterator[SettingProblem]:
    """Packing reads all documents before the first step."""
    if v.on("packing") and v.on("lazy_tokenize"):
        where = "arguments/base_args/base_args.py:173: Packing and lazy_tokenize are incompatible"
        sets = {"lazy_tokenize": "false"}
        yield from _says(v, "refuses", "packing with lazy_tokenize", where, "lazy_tokenize", sets=sets)


def linear_layers(v: Values) -> Iterator[SettingProblem]:
    """Recurrent layers: Qwen3.5's are patched, and ask for flash-linear-attention; Qwen3-Next's are not."""
    if v.model is None or "linear_attention" not in v.model.layer_types or not (v.packed or v.size > 1):
        return
    name = v.model.model_type
    at = (_packing(v) if v.packed else "sequence_parallel_size", "packing")
    sets = {**({"packing": "off"} if v.packed else {}), **({"ring_size": "1"} if v.size > 1 else {})}
    if name.startswith("qwen3_5") and v.reaches(ms_swift.QWEN3_5_SEQUENCE):
        lacks = v.snapshot is not None and v.snapshot.distributions and not v.snapshot.has("flash-linear-attention")
        if lacks and v.packed and v.reaches(ms_swift.QWEN3_5_REFUSES):
            where = "model/models/qwen.py:1296: with multiple sequences requires flash-linear-attention"
            advice = "pip install flash-linear-attention"
            message = f"{_packing(v)} with {name}: flash-linear-attention is not installed"
            yield from _says(v, "refuses", message, where, *at, advice=advice)
        return
    what = _packing(v) if v.packed else f"sequence_parallel_size {v.size}"
    where = f"template/base.py:2075 gives position_ids alone; model/models/qwen.py patches Qwen3.5 and not {name}"
    message = f"{what} with {name}: its recurrent layers carry their state over from one document or part to the next"
    yield from _says(v, "wrong", message, where, *at, sets=sets)


def config_option(v: Values) -> Iterator[SettingProblem]:
    """`--config file.yaml` was taken from 3.10 to 4.0; since 4.1 the file is the first argument."""
    written = next((setting for setting in v.strange if setting.name == "--config"), None)
    if written is None:
        return
    first, gone = ms_swift.CONFIG_OPTION
    if v.reaches(gone):
        message = f"--config is no option since {gone}: the file is the first argument, swift {v.kind} {written.value}"
        evidence = (f"ms-swift 4.6.0 cli/main.py:41: argv[0].endswith('.yaml'); {v.version} refuses remaining_argv",)
        advice = f"swift {v.kind} {written.value} …"
        yield SettingProblem("refuses", message, evidence, written.location, advice=advice)
    elif not v.reaches(first):
        message = f"--config is no option before {first}"
        yield SettingProblem("refuses", message, ("ms-swift 3.9.3 cli/main.py reads no file",), written.location)


BEHAVIOURS: tuple[Callable[[Values], Iterator[SettingProblem]], ...] = (
    packing_without_flash,
    kinds_of_training,
    derived_ring,
    heads_of_old_releases,
    padding_side,
    lazy_tokenize,
    linear_layers,
    config_option,
)

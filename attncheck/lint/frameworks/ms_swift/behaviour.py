"""Problems of settings that ms-swift cannot serve: each function is one behaviour, read in its wheels.

Lines are those of 4.6.0. What can be judged without knowing the framework (sizes against the world size, an
implementation that sequence parallelism does not hook into, missing packages) is judged by rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attncheck.core.arithmetic import largest_divisor
from attncheck.core.facts import Absent, Known
from attncheck.core.job import Consequence, SettingProblem
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.values import MsSwiftSettings

SEQUENCE_PARALLEL_FILE = "sequence_parallel/sequence_parallel.py"


def find_problems(settings: MsSwiftSettings) -> tuple[SettingProblem, ...]:
    """Return the problems that the release has with the settings."""
    return tuple(problem for behaviour in BEHAVIOURS for problem in behaviour(settings))


def _setting_problem(
    settings: MsSwiftSettings, consequence: Consequence, message: str, source: str, *fields: str, **options: Any
) -> Iterator[SettingProblem]:
    """Yield a problem, located at the first of `fields` that the launch sets."""
    yield SettingProblem(
        consequence, message, (f"ms-swift 4.6.0 {source}",), settings.find_location(*fields), **options
    )


def _packing_field(settings: MsSwiftSettings) -> str:
    return "packing" if settings.is_on("packing") else "padding_free"


def packing_without_flash(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """Packing and padding_free without one of the flash implementations that they need by name."""
    implementation, field = settings.get("attn_impl"), _packing_field(settings)
    if not settings.packed or _is_unresolved(settings, "attn_impl"):
        return
    if not settings.is_at_least(ms_swift.PACKING_REFUSED_SINCE):
        return
    if implementation in ms_swift.packing_implementations(settings.version):
        return
    message = f"{field} with attn_impl {implementation or 'not written'}: it asks for a flash implementation by name"
    source = f'arguments/sft_args.py:194: The "{field}" feature requires a flash attention implementation'
    sets = {"attn_implementation": "flash_attention_2"}
    yield from _setting_problem(settings, "refuses", message, source, "attn_impl", "packing", "padding_free", sets=sets)


def _is_unresolved(settings: MsSwiftSettings, name: str) -> bool:
    return name in settings.by_field and not settings.by_field[name].known


def unsupported_rlhf_types(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """Kinds of preference learning that take no packing, and those that take no sequence parallelism."""
    if settings.verb != "rlhf":
        return
    rlhf_type, field = settings.trainer, _packing_field(settings)
    takes_kto = settings.is_at_least(ms_swift.DERIVED_RING_SINCE)
    padding_free_types = tuple(name for name in ms_swift.PADDING_FREE_TYPES if name != "kto" or takes_kto)
    checks_packing = settings.is_at_least(ms_swift.PACKING_TYPES_SINCE) or settings.is_on("padding_free")
    checks_types = checks_packing and settings.is_at_least(ms_swift.PADDING_FREE_TYPES_SINCE)
    if settings.packed and checks_types and rlhf_type not in padding_free_types:
        source = (
            f"arguments/rlhf_args.py:713: The current rlhf_type '{rlhf_type}' does not support padding_free/packing"
        )
        message, sets = f"rlhf_type {rlhf_type} with {field}", {"packing": "off"}
        yield from _setting_problem(settings, "refuses", message, source, field, sets=sets)
    checks_size = settings.is_at_least(ms_swift.SEQUENCE_PARALLEL_TYPES_SINCE)
    if checks_size and settings.sequence_parallel_size > 1 and rlhf_type not in ms_swift.SEQUENCE_PARALLEL_TYPES:
        source = f"arguments/rlhf_args.py:721: The current rlhf_type '{rlhf_type}' does not support sequence_parallel"
        message = f"rlhf_type {rlhf_type} with sequence_parallel_size {settings.sequence_parallel_size}"
        yield from _setting_problem(
            settings, "refuses", message, source, "sequence_parallel_size", sets={"ring_size": "1"}
        )
    checks_liger = settings.is_at_least(ms_swift.LIGER_GRPO_REFUSED_SINCE)
    if checks_liger and rlhf_type == "grpo" and settings.is_on("use_liger_kernel"):
        for is_on, name, sets in (
            (settings.sequence_parallel_size > 1, "sequence_parallel_size", {"ring_size": "1"}),
            (settings.packed, field, {"packing": "off"}),
        ):
            if is_on:
                source = "arguments/rlhf_args.py:551: Liger loss does not support sequence parallel, padding free yet"
                yield from _setting_problem(
                    settings, "refuses", f"GRPO with Liger's loss and {name}", source, name, sets=sets
                )


def derived_ring_refused(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """Where the size does not divide the key/value heads the rest becomes a ring, which has more conditions."""
    if settings.zigzag_ring_size < 2 or settings.model is None:
        return
    size, fields = f"sequence_parallel_size {settings.sequence_parallel_size}", ("sequence_parallel_size",)
    effect = f"{size} becomes Ulysses over {settings.ulysses_size} and a ring over {settings.zigzag_ring_size} ranks"
    sets_ulysses = {"ring_size": str(settings.ulysses_size)}
    is_recurrent = "linear_attention" in settings.model.layer_types
    is_qwen3_5 = is_recurrent and settings.model.model_type.startswith("qwen3_5")
    if is_qwen3_5 and settings.is_at_least(ms_swift.QWEN3_5_SEQUENCE_PARALLEL_SINCE):
        source = "model/models/qwen.py:1602: does not support derived ring attention"
        yield from _setting_problem(
            settings,
            "refuses",
            f"{effect}, which Qwen3.5's recurrent layers refuse",
            source,
            *fields,
            sets=sets_ulysses,
        )
        return
    if not settings.packed:
        source = f"{SEQUENCE_PARALLEL_FILE}:378: needs ulysses/ring-attention, which needs --padding_free true"
        yield from _setting_problem(
            settings, "refuses", f"{effect}, which asks for padding_free", source, *fields, sets=sets_ulysses
        )
    elif settings.implementation == "sdpa":
        source = f"{SEQUENCE_PARALLEL_FILE}:264: SDPA does not support Ring attention"
        sets = {"attn_implementation": "flash_attention_2"}
        yield from _setting_problem(
            settings, "refuses", f"{effect}, which sdpa does not have", source, "attn_impl", *fields, sets=sets
        )
    if isinstance(settings.model.sliding_window, Known):
        window = settings.model.sliding_window.value
        source = f"{SEQUENCE_PARALLEL_FILE}:218: window_size=sliding_window, a number where flash-attn unpacks a pair"
        message = f"{effect}, which is given the model's window of {window} as a number: TypeError"
        yield from _setting_problem(settings, "refuses", message, source, *fields, sets=sets_ulysses)


def indivisible_heads(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """From 3.4.1 to 3.8 there is Ulysses alone: the number of ranks must divide that of the heads."""
    size = settings.sequence_parallel_size
    if size < 2 or settings.is_at_least(ms_swift.DERIVED_RING_SINCE):
        return
    if settings.uses_ring_variable or settings.uses_xtuner:
        return
    heads = settings.model.num_heads if settings.model is not None else None
    if isinstance(heads, Known) and heads.value % size:
        message = f"sequence_parallel_size {size} does not divide {heads.value} heads"
        source = "(3.8.3) trainers/sequence_parallel/ulysses.py:41: Number of heads must be divisible"
        divisor = largest_divisor(heads.value, size)
        yield from _setting_problem(
            settings, "refuses", message, source, "sequence_parallel_size", sets={"ring_size": str(divisor)}
        )


def left_padding_refused(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """Sequence parallelism with rows that are padded on the left."""
    is_checked = settings.rows > 1 or settings.is_at_least(ms_swift.LEFT_ROWS_REFUSED_SINCE)
    is_left = settings.get("padding_side") == "left" and not settings.packed
    if settings.sequence_parallel_size > 1 and is_left and is_checked:
        source = 'template/base.py:2078: padding_side must be "right" when … sequence_parallel_size > 1'
        message = f"padding_side left with sequence_parallel_size {settings.sequence_parallel_size}"
        yield from _setting_problem(
            settings, "refuses", message, source, "padding_side", sets={"padding_side": "right"}
        )


def packing_with_lazy_tokenize(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """Packing, which reads all documents before the first step, with lazy_tokenize."""
    is_checked = settings.is_at_least(ms_swift.LAZY_PACKING_REFUSED_SINCE)
    if is_checked and settings.is_on("packing") and settings.is_on("lazy_tokenize"):
        source = "arguments/base_args/base_args.py:173: Packing and lazy_tokenize are incompatible"
        sets = {"lazy_tokenize": "false"}
        yield from _setting_problem(
            settings, "refuses", "packing with lazy_tokenize", source, "lazy_tokenize", sets=sets
        )


def recurrent_layers_leak(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """Recurrent layers: Qwen3.5's are patched, and need flash-linear-attention; Qwen3-Next's are not."""
    size = settings.sequence_parallel_size
    if settings.model is None or "linear_attention" not in settings.model.layer_types:
        return
    if not settings.packed and size < 2:
        return
    model_type = settings.model.model_type
    fields = (_packing_field(settings) if settings.packed else "sequence_parallel_size", "packing")
    sets = {**({"packing": "off"} if settings.packed else {}), **({"ring_size": "1"} if size > 1 else {})}
    if model_type.startswith("qwen3_5") and settings.is_at_least(ms_swift.QWEN3_5_SEQUENCE_PARALLEL_SINCE):
        snapshot = settings.snapshot
        package = (
            snapshot.package("flash-linear-attention") if snapshot is not None and snapshot.distributions else None
        )
        is_missing = isinstance(package, Absent)
        if is_missing and settings.packed and settings.is_at_least(ms_swift.QWEN3_5_KERNEL_REQUIRED_SINCE):
            source = "model/models/qwen.py:1296: with multiple sequences requires flash-linear-attention"
            advice = "pip install flash-linear-attention"
            message = f"{_packing_field(settings)} with {model_type}: flash-linear-attention is not installed"
            yield from _setting_problem(settings, "refuses", message, source, *fields, advice=advice)
        return
    cause = _packing_field(settings) if settings.packed else f"sequence_parallel_size {size}"
    source = (
        f"template/base.py:2075 gives position_ids alone; model/models/qwen.py patches Qwen3.5 and not {model_type}"
    )
    message = (
        f"{cause} with {model_type}: its recurrent layers carry their state over from one document or part to the next"
    )
    yield from _setting_problem(settings, "wrong", message, source, *fields, sets=sets)


def misplaced_config_file(settings: MsSwiftSettings) -> Iterator[SettingProblem]:
    """`--config file.yaml` was taken from 3.10 to 4.0; since 4.1 the file is the first argument."""
    setting = next((setting for setting in settings.unknown if setting.name == "--config"), None)
    if setting is None:
        return
    first, removed = ms_swift.CONFIG_OPTION_RANGE
    if settings.is_at_least(removed):
        command = f"swift {settings.verb} {setting.value}"
        message = f"--config is no option since {removed}: the file is the first argument, {command}"
        source = f"ms-swift 4.6.0 cli/main.py:41: argv[0].endswith('.yaml'); {settings.version} refuses remaining_argv"
        evidence, advice = (source,), f"{command} …"
        yield SettingProblem("refuses", message, evidence, setting.location, advice=advice)
    elif not settings.is_at_least(first):
        message = f"--config is no option before {first}"
        yield SettingProblem("refuses", message, ("ms-swift 3.9.3 cli/main.py reads no file",), setting.location)


BEHAVIOURS: tuple[Callable[[MsSwiftSettings], Iterator[SettingProblem]], ...] = (
    packing_without_flash,
    unsupported_rlhf_types,
    derived_ring_refused,
    indivisible_heads,
    left_padding_refused,
    packing_with_lazy_tokenize,
    recurrent_layers_leak,
    misplaced_config_file,
)

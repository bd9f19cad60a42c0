"""Measures whether a change that is neutral by documentation changes what an installed trainer computes.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone. The
trainers, their losses and their options are read from the installed classes. The attention of the model adds nothing
to its results, so that rows without padding need no kernel that separates them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from .liger import SETTINGS, imitate_liger

Row = dict[str, Any]
Make = Callable[..., Any]  # of the rows by kind, rows of a micro-batch, micro-batches of a step, settings
# Tokens of the two answers of each row. Both halves have as many, so that means over rows or tokens have equal weights.
LENGTHS = ((5, 9), (12, 4), (3, 6), (14, 7))
LONG = ((30, 4), (4, 30), (5, 6), (6, 5))  # the shorter answers fit into MAX_LENGTH
SAME = ((6, 6),) * 6  # the same row six times
ANSWERED = (1, 1, 2, 4)  # tokens of answers: no two of them have as many as the other two
MAX_LENGTH = 16
HALVES, SHORT, PADDED = "two micro-batches", "a short last step", "more padding"
CUT, EVALUATED, ODD, SAVED = "max_length", "evaluate new rows", "an odd number of rows", "the first checkpoint"
PRECOMPUTED = "precompute_ref_log_probs"
PAD_IS_END = "the EOS token as pad token"
ON_POLICY = "lmbda"  # the share of steps on answers that a trainer generates
FREE = {"padding_free": True}
CHANGES: dict[str, dict[str, Any]] = {
    "padding_free": FREE,
    "use_liger_kernel": SETTINGS,
    "use_liger_loss": {"use_liger_loss": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    PRECOMPUTED: {PRECOMPUTED: True},
}
# Changes that are made at once, without and with a setting; each is made separately only if the step differs.
TOGETHER = ((HALVES, PADDED, "gradient_checkpointing"), (HALVES, "padding_free"))
PREFERENCES, LABELLED, ANSWERS, STEPWISE, MESSAGES = range(5)  # kinds of data
LOSSES = ("loss_type", "pref_loss")  # settings that name the loss
VALUE = 0.25  # of an option that is off, or 1, by default
COLUMN = "a number in each row"  # the value of a setting that is a column of the rows
# Columns that a trainer looks for in a batch, unless they are tensors of tokens or images.
NAME = r"'(?!\w*(?:ids|mask|labels|values|sizes|logp|output|kwargs))(\w+)'"
COLUMNS = re.compile(rf"{NAME} in (?:inputs|batch)\b|\b(?:inputs|batch)\.(?:pop|get)\({NAME}")
TOLERANCE = 1e-3  # relative, in float32
REFUSALS = (ValueError, NotImplementedError, AssertionError)
IMPORT_FAILED = "an import fails: "
FOREIGN = ("transformers", "torch", "builtins", "abc", "typing")  # modules whose classes are no trainer's own


def list_trainers() -> dict[str, tuple[Any, Any]]:
    """Return the classes of TRL's trainers that generate nothing, and of their configurations, by objective."""
    modules = ["trl"]
    with contextlib.suppress(ImportError):
        path = importlib.import_module("trl.experimental").__path__
        modules += [f"trl.experimental.{item.name}" for item in pkgutil.iter_modules(path) if item.ispkg]
    classes: dict[str, tuple[Any, Any]] = {}
    for name in modules:
        with contextlib.suppress(Exception):  # it needs packages that are not installed
            module = importlib.import_module(name)
            for stem in (item.removesuffix("Trainer") for item in dir(module) if item.endswith("Trainer")):
                with contextlib.suppress(Exception):
                    trainer, config = getattr(module, f"{stem}Trainer"), getattr(module, f"{stem}Config")
                    if not {"reward_funcs", "rollout_func", "max_new_tokens"} & list_parameters(trainer):
                        classes.setdefault(
                            trainer.__module__.split(".")[-1].removesuffix("_trainer"), (trainer, config)
                        )
    return classes


def list_parameters(function: Any) -> set[str]:
    """Return the names of a function's or class's parameters."""
    return set(inspect.signature(function).parameters)


def write_rows(lengths: Any, settings: Mapping[str, Any] | None = None) -> list[list[Row]]:
    """Return the same answers as preferences, as answers with a label, with a prompt, in steps and as messages.

    Settings that are columns are added to each row.
    """
    answers = [
        [" ".join(f"w{8 + (11 * lengths.index(pair) + 29 * side + step) % 50}" for step in range(length))
         for side, length in enumerate(pair)]
        for pair in lengths
    ]  # fmt: skip
    roles = ("user", "assistant")
    kinds: list[list[Row]] = [
        [{"prompt": "w1 w2 w3 ", "chosen": chosen, "rejected": rejected} for chosen, rejected in answers],
        [{"prompt": "w1 w2 w3 ", "completion": pair[0], "label": not index % 2} for index, pair in enumerate(answers)],
        [{"prompt": "w1 w2 w3 ", "completion": answer} for answer, _ in answers],
        [{"prompt": "w1 w2 w3", "completions": pair, "labels": [True, False]} for pair in answers],
        [{"messages": [{"role": role, "content": text} for role, text in zip(roles, ("w1 w2 w3", f" {pair[0]}"))]}
         for pair in answers],
    ]  # fmt: skip
    columns = [name for name, value in (settings or {}).items() if value == COLUMN]
    return [[row | dict.fromkeys(columns, 1.0 + number) for number, row in enumerate(rows)] for rows in kinds]


# One step: what a trainer takes and gives -----------------------------------------------------------------------------
def observe(
    trainer: Any, steps: int = 1, is_padded: bool = False, seed: int = 0, generates: bool = False
) -> SimpleNamespace:
    """Return the batches and losses of the micro-batches of a trainer's steps, and the gradient of each step."""
    import torch

    parameters = [p for name, p in trainer.model.named_parameters() if p.requires_grad and "self_attn" not in name]
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    seen = SimpleNamespace(trainer=trainer, batches=[], losses=[], gradients=[])
    compute, order = trainer.compute_loss, torch.utils.data.SequentialSampler(trainer.train_dataset)

    def record(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        seen.batches.append(list_labels(inputs))
        inputs = pad_batch(inputs, trainer.model.config.pad_token_id) if is_padded else inputs
        result = compute(model, inputs, *arguments, **options)
        seen.losses.append(float((result[0] if isinstance(result, tuple) else result).detach()))
        return result

    def generate(*_: object, **__: object) -> None:
        raise NotImplementedError("what it generates depends on the batch")

    if not (generates or hasattr(trainer, "has_answers")):
        trainer.model.generate = generate
        trainer._get_train_sampler = lambda *_, **__: order
    trainer.compute_loss = record
    trainer.args.max_steps = steps
    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.gradients.append(_flatten(parameters)))
    torch.manual_seed(seed)
    trainer.train()
    trainer.compute_loss = compute
    if len(seen.gradients) < steps or not seen.losses:
        raise RuntimeError("no optimiser step was taken")
    return seen


def give_answers(trainer: Any) -> None:
    """Let a trainer's model generate the same answers however the rows are divided: one after another of ANSWERED."""
    import torch

    tokenizer, first = trainer.processing_class, 0

    def generate(input_ids: Any, return_dict_in_generate: bool = False, **_: object) -> Any:
        nonlocal first
        rows, places = torch.arange(first, first + len(input_ids))[:, None] % len(ANSWERED), torch.arange(max(ANSWERED))
        first += len(input_ids)
        ends = torch.tensor(ANSWERED)[rows[:, 0]][:, None] - 1
        answers = torch.where(places < ends, 8 + 7 * rows + 3 * places, tokenizer.pad_token_id)
        answers = torch.where(places == ends, tokenizer.eos_token_id, answers)
        sequences = torch.cat([input_ids, answers], 1)
        return SimpleNamespace(sequences=sequences) if return_dict_in_generate else sequences

    trainer.model.generate, trainer.has_answers = generate, True


def _flatten(parameters: Any) -> Any:
    import torch

    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten() for p in parameters])


def pad_batch(batch: Any, token: int) -> dict[str, Any]:
    """Return a batch with four more columns of padding, on the side where its collator pads; none if no row has any.

    Tokens have a mask of their name: `input_ids` and `attention_mask`, or `completion_ids` and `completion_mask`.
    """
    import torch

    padded = dict(batch)
    for name in [name for name in batch if str(name).endswith("ids")]:
        ids, (stem, named) = batch[name], _split_name(name)
        mask = batch.get(f"{stem}{named}")
        if hasattr(ids, "shape") and getattr(mask, "shape", None) == ids.shape and not mask.all():
            sides = (0, 4) if mask[:, 0].all() else (4, 0)
            is_completion = stem == "completion_"
            for own in [key for key in batch if key.startswith(stem) or (is_completion and "per_token" in key)]:
                if getattr(batch[own], "shape", None) == ids.shape:
                    fill = token if own == name else -100 if own.endswith("labels") else 0
                    padded[own] = torch.nn.functional.pad(batch[own], sides, value=fill)
    return padded


def _split_name(name: str) -> tuple[str, str]:
    """Return what tokens and their mask are prefixed with, and what such a mask is called."""
    if name.endswith("input_ids"):
        return name.removesuffix("input_ids"), "attention_mask"
    return name.removesuffix("ids"), "mask"


def list_labels(batch: Any) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of each padded row of a batch, and those of them that are trained."""
    rows = []
    for key in [name for name in batch if str(name).endswith("input_ids")]:
        stem, ids = key.removesuffix("input_ids"), batch[key]
        for name, ignored in (("labels", -100), ("completion_mask", 0)):
            marks, mask = batch.get(f"{stem}{name}"), batch.get(f"{stem}attention_mask")
            if all(getattr(item, "shape", None) == ids.shape for item in (marks, mask)):
                attended = mask.bool()
                rows += [
                    (row[own].tolist(), row[own & (mark != ignored)].tolist())
                    for row, own, mark in zip(ids, attended, marks)
                ]
                break
    return rows


# Twins ----------------------------------------------------------------------------------------------------------------
def compare(one: SimpleNamespace, other: SimpleNamespace, steps: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """Return how two steps that should be equal differ: the ratio and cosine of gradients, and the first `part`."""
    first, second = one.gradients[steps[0]], other.gradients[steps[1]]
    norm, given = float(first.norm()), float(second.norm())
    if not TOLERANCE**2 < norm < float("inf"):
        return {"error": "the step has no gradient, or nothing but rounding"}
    labels = [sorted(row for rows in seen.batches for row in rows) for seen in (one, other)]
    cosine = float(first.double() @ second.double()) / (norm * given) if given else 0.0
    is_nearer = abs(given / norm - 1) <= TOLERANCE and cosine >= 1 - TOLERANCE / 10
    is_same_loss = abs(sum(other.losses) / len(other.losses) - sum(one.losses) / len(one.losses)) <= TOLERANCE
    has_labels = all(labels) and len(labels[0]) == len(labels[1])
    part = "labels" if has_labels and labels[0] != labels[1] else "gradient" if is_same_loss else "loss"
    return {"ratio": given / norm, "cosine": cosine, "part": "" if is_nearer else part}


def compare_truncation(whole: SimpleNamespace, cut: SimpleNamespace) -> dict[str, Any]:
    """Return whether truncating changed a row that fits ("a row that fits"), or the labels of the tokens it keeps."""
    rows = [row for rows in cut.batches for row in rows]
    for ids, labels in (row for rows in whole.batches for row in rows):
        same = [row for row in rows if set(row[0]) - set(ids[:4]) <= set(ids) and row[0]]
        if len(ids) <= MAX_LENGTH and same and (ids, labels) not in rows:
            return {"part": "a row that fits"}
    return {"part": ""}


def measure_twins(make: Make, whole: SimpleNamespace, config: Any, is_liger: bool) -> Iterator[dict[str, Any]]:
    """Yield what differs between a step of a trainer (`whole`) and its twins, for each of its losses and options."""
    again = attempt(make, LENGTHS, 4, 1, {}, seed=1)
    if isinstance(again, str) or compare(whole, again).get("part"):
        yield {"error": "two equal steps differ: it is random"}
        return
    if failure := find_save_failure(whole.trainer):
        yield {"setting": "", "change": SAVED, "part": failure, "place": _locate(type(whole.trainer).save_model)}
    fields = {field.name: field for field in dataclasses.fields(config)}
    changes = {name: value for name, value in CHANGES.items() if name in fields and (is_liger or "liger" not in name)}
    for setting in ({}, *list_settings(type(whole.trainer), config, fields)):
        named = {"setting": ", ".join(f"{key}={value}" for key, value in setting.items())}
        base = attempt(make, LENGTHS, 4, 1, setting) if setting else whole
        if isinstance(base, str):
            twin = attempt(make, LENGTHS, 4, 1, {**setting, **FREE}) if base and "padding_free" in changes else ""
            if not isinstance(twin, str):  # it fails because of the padding
                fault = {"part": base, "place": find_place(twin.trainer, setting, "padding_free")}
                yield {**named, "change": "padding_free", **fault}
        elif (
            not setting or {*LOSSES, ON_POLICY} & {*setting} or compare(whole, base).get("part")
        ):  # others change nothing here
            for change, twin in iterate_changes(make, base, setting, changes):
                place = {"place": find_place(base.trainer, setting, change)} if twin.get("part") else {}
                yield {**named, "change": change, **twin, **place}


def find_save_failure(trainer: Any) -> str:
    """Return why a trainer cannot save its model, as it does at its first checkpoint; "" if it can."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_model(folder)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def iterate_changes(
    make: Make, base: SimpleNamespace, setting: dict[str, Any], changes: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each change that the trainer takes, with what differs."""
    is_option = any(value == VALUE for value in setting.values())  # their division is that of the loss
    twins: dict[str, dict[str, Any]] = {} if is_option else {HALVES: {"per_device": 2, "count": 2}}
    if not setting or "padding_free" not in changes:  # which shows it too
        twins[PADDED] = {"is_padded": True}
    if not setting or ON_POLICY in setting:
        twins[PAD_IS_END] = {"settings": {**setting, PAD_IS_END: True}}
    for change, settings in changes.items():
        if not (setting and change in (PRECOMPUTED, "gradient_checkpointing")):  # no matter of the loss
            twins[change] = {"settings": {**setting, **settings}}
    twins = {HALVES: twins[HALVES]} if COLUMN in setting.values() else twins
    together = {name: twins[name] for name in TOGETHER[bool(setting)] if name in twins}
    merged = {key: value for options in together.values() for key, value in options.items()}
    plain = {"per_device": 4, "count": 1, "settings": setting}
    both = attempt(make, LENGTHS, **{**plain, **merged}) if len(together) > 1 else ""
    are_neutral = not isinstance(both, str) and not compare(base, both).get("part")
    is_neutral: dict[str, bool] = {}
    for change, options in twins.items():
        if "liger" in change:
            imitate_liger()
        is_asked = are_neutral and change in together
        other = both if is_asked else attempt(make, LENGTHS, **{**plain, **options})
        if not isinstance(other, str):
            answer = compare(base, other)
            yield change, answer
            is_neutral[change] = not answer.get("part")
            if "liger" in change and is_neutral[change] and is_neutral.get(HALVES):
                divided = attempt(make, LENGTHS, **{**plain, **options, **twins[HALVES]})
                if not isinstance(divided, str):
                    yield f"{change}, {HALVES}", compare(base, divided)
        elif other and change in (PADDED, *changes):
            yield change, {"error": other}
    if setting:
        return
    short = attempt(make, SAME, 2, 2, {}, steps=2)
    if not isinstance(short, str):
        yield SHORT, compare(short, short, (0, 1))
    odd = attempt(make, LENGTHS[:3], 3, 1, {})
    if not isinstance(odd, str):
        is_own = any(a == b for rows in odd.batches for a, b in zip(rows, rows[(len(rows) + 1) // 2 :]))
        yield ODD, {"part": "a row that is its own contrast" * is_own}
    if PRECOMPUTED in changes:
        losses = [_evaluate_after_step(make, settings) for settings in ({}, changes[PRECOMPUTED])]
        if None not in losses and losses[0]:
            differs = abs(losses[1] / losses[0] - 1) > TOLERANCE
            yield f"{PRECOMPUTED}, {EVALUATED}", {"ratio": losses[1] / losses[0], "part": "loss" if differs else ""}
    whole, cut = (attempt(make, LONG, 4, 1, cut) for cut in ({}, {CUT: MAX_LENGTH}))
    if not isinstance(whole, str) and not isinstance(cut, str):
        yield CUT, compare_truncation(whole, cut)


def _evaluate_after_step(make: Make, settings: dict[str, Any]) -> Any:
    """Return the loss of rows that a trainer evaluates first after a step; None if it refuses."""
    with contextlib.suppress(Exception):
        trainer = make(LENGTHS, 4, 1, {**settings, "learning_rate": 0.1, "ref_model": None})
        other = make(LENGTHS[::-1], 4, 1, {"ref_model": None})
        observe(trainer)
        for rows in (getattr(other, "given_rows", None), other.train_dataset):  # some prepare what they evaluate
            with contextlib.suppress(Exception):
                return trainer.evaluate(rows)["eval_loss"]
    return None


def attempt(make: Make, lengths: Any, per_device: int, count: int, settings: dict[str, Any], **options: Any) -> Any:
    """Return what a trainer's steps give, or why they or an import fail: "" if it refuses the settings."""
    try:
        trainer = make(lengths, per_device, count, settings)
    except Exception as error:
        reasons = [own for own in (error.__cause__, error) if isinstance(own, ImportError)]
        return f"{IMPORT_FAILED}{' '.join(str(reasons[0]).split())[:200]}" if reasons else ""
    try:
        return observe(trainer, **options)
    except REFUSALS:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# What a class takes ---------------------------------------------------------------------------------------------------
def list_settings(trainer: Any, config: Any, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the losses that a trainer's classes compare with, and the options that they read and that are off."""
    nodes = _list_nodes(trainer)
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    losses = list_compared(trainer, "loss_type")
    field = next((name for name in LOSSES if name in fields), None)
    own = [
        name for owner in list_owners(config) for name in vars(owner).get("__annotations__", ())
        if name in read and name in fields and "float" in str(fields[name].type)
        and fields[name].default in (None, 0.0, 1.0) and "list" not in str(fields[name].type).lower()
    ]  # fmt: skip
    settings: list[dict[str, Any]] = [{field: value} for value in losses] if field else []
    settings += [{ON_POLICY: 1.0}] * (ON_POLICY in fields)
    matches = (names for owner in list_owners(trainer) for names in COLUMNS.findall(ast.unparse(_parse(owner))))
    return [
        *settings,
        *({name: VALUE} for name in dict.fromkeys(own)),
        *({name: COLUMN} for name in {max(names): 0 for names in matches}),
    ]


def list_compared(trainer: Any, name: str) -> list[str]:
    """Return the texts that a trainer's classes compare with a setting."""
    compared = [node for node in _list_nodes(trainer) if isinstance(node, ast.Compare) and name in ast.dump(node)]
    constants = (item.value for node in compared for item in ast.walk(node) if isinstance(item, ast.Constant))
    return sorted({value for value in constants if isinstance(value, str)})


def _list_nodes(trainer: Any) -> list[ast.AST]:
    return [node for owner in list_owners(trainer) for node in ast.walk(_parse(owner))]


def list_owners(kind: Any) -> list[Any]:
    """Return the classes of a trainer or configuration that are its framework's."""
    return [owner for owner in kind.__mro__ if owner.__module__.split(".")[0] not in FOREIGN]


@functools.cache
def _parse(owner: Any) -> ast.AST:
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        return ast.parse(textwrap.dedent(inspect.getsource(owner)))
    return ast.Module([], [])


def find_place(trainer: Any, setting: dict[str, Any], change: str) -> str:
    """Return file:line where a trainer uses a setting, if possible in a method that uses the change too."""
    words = [value if isinstance(value, str) and value != COLUMN else key for key, value in setting.items()] or [change]
    places = []
    for owner in list_owners(type(trainer)):
        for name, function in vars(owner).items():
            with contextlib.suppress(Exception):
                lines, _ = _read_lines(function)
                used = [number for number, line in enumerate(lines) if any(word in line for word in words)]
                if used and name != "__init__":
                    is_both = change.split("_kernel")[0] in "".join(lines)
                    places.append((not is_both, _locate(function, used[0])))
    return min(places, key=lambda place: place[0])[1] if places else _locate(type(trainer).compute_loss)


def _locate(function: Any, line: int = 0) -> str:
    path = str(inspect.getsourcefile(inspect.unwrap(function))).split("site-packages/")[-1]
    return f"{path}:{_read_lines(function)[1] + line}"


_read_lines = functools.cache(inspect.getsourcelines)

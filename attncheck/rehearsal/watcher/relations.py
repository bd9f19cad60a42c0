"""Asks a script's functions by relations that hold for all such functions, with inputs that are made for them.

Metrics must be best for a model that predicts each label, and must not depend on padding. A row's tokens and labels
must not depend on the other rows of its batch. Each question is a fork's, because functions may keep what they see.
`relations-N.json` holds the answers.

Sources: transformers 5.17.0 trainer.py (`evaluation_loop` passes logits and labels to `preprocess_logits_for_metrics`,
and numpy arrays to `compute_metrics`; the same in 4.57.3), loss/loss_utils.py (`ForCausalLMLoss` shifts labels).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

from .continuing import can_fork, run_in_fork, write_answer
from .effects import GIVEN
from .modules import describe_code, is_foreign

CAUSAL = ("CausalLM", "LMHeadModel")  # classes whose logits at a token are of the next one
PREDICTORS = {0: "its own token", 1: "the next token", 2: "the token after the next"}  # of the logits at a token
MAX_NUMBERS = 1 << 24  # of logits
PADDING, MAX_ROWS, IGNORED = 8, 8, -100
CLEAR = 2.0  # times as far from a random predictor as the right one
ROUNDING = 1e-5
PARTS = ("tokens", "labels")  # of a row, that are others
BETTER = {  # a metric's name -> whether greater is better
    re.compile(r"loss|perplexity|ppl|(^|_)(wer|cer|mae|mse|rmse|error)", re.I): False,
    re.compile(
        r"(acc(uracy|uracies)?|(^|_|/)(f1|bleu|rouge|recall|precision|exact_match|margins|reward))$", re.I
    ): True,
}
KEPT = "the checkpoint with the worst {} is kept: {}, and greater_is_better is {}"
METRICS = "the metrics of an evaluation"  # begins a note


def report(folder: str, check: str, **lines: list[str]) -> None:
    """Write `relations-N.json`: violations, warnings or notes of a check, as the first rank finds them."""
    if os.environ.get("RANK", "0") == "0":
        write_answer(folder, "relations", {"check": check, **lines})


def ask_in_fork(recorder: Any, check: str, question: Callable[[dict[str, Any]], None], is_asked: bool = False) -> None:
    """Report what a question answers in a fork; a question that its inputs end is not known, and says nothing."""
    if not (is_asked or "ATTNCHECK_CONTINUES" in os.environ) or not can_fork():
        return

    def answer(place: str, answers: dict[str, Any]) -> None:
        recorder.is_paused = True
        question(answers)

    with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
        answers = run_in_fork(answer, folder)
        kinds = ("violations", "warnings", "notes")
        lines = {kind: answers[kind] for kind in kinds if answers.get(kind)}
        if lines and "error" not in answers:
            report(recorder.folder, check, **lines)


def ask_metrics(recorder: Any, trainer: Any) -> None:
    """Ask the metrics that a script gives its trainer."""
    metrics, args = trainer.compute_metrics, trainer.args
    is_generated = getattr(args, "predict_with_generate", False) or getattr(args, "batch_eval_metrics", False)
    kinds = [type(model).__name__ for model in (trainer.model, *recorder.models)]
    is_causal = any(kind.endswith(CAUSAL) for kind in kinds)
    best, is_greater = _read_best(args)
    expected = next((better for words, better in BETTER.items() if words.search(best)), is_greater)
    if expected is not is_greater and metrics is None:
        report(recorder.folder, "update", warnings=[KEPT.format(best, "its name says otherwise", is_greater)])
    is_own = metrics is not None and is_foreign(metrics) and not is_foreign(trainer.prediction_step)
    if is_own and is_causal and trainer.eval_dataset is not None and not is_generated:
        ask_in_fork(recorder, "update", functools.partial(_compare_predictors, trainer))


def _compare_predictors(trainer: Any, answers: dict[str, Any]) -> None:
    """Compare the metrics of models that predict each label at its place, or next to it, and of a random one."""
    labels = next(iter(trainer.get_eval_dataloader()))["labels"][:MAX_ROWS]
    size = trainer.model.config.vocab_size
    labels = labels[: max(1, MAX_NUMBERS // (labels.shape[1] * size))]
    right, first, second = (_evaluate(trainer, labels, size, *how) for how in ((1, 0), (None, 1), (None, 2)))
    others = {offset: _evaluate(trainer, labels, size, offset, 0) for offset in (0, 2)}
    padded = _evaluate(trainer, labels, size, 1, 0, PADDING)
    name = describe_code(trainer.compute_metrics)
    best, is_greater = _read_best(trainer.args)
    for key, value in right.items():
        noise, own = abs(first[key] - second[key]), abs(value - first[key])
        offset = max(others, key=lambda offset: abs(others[offset][key] - first[key]))
        if abs(others[offset][key] - first[key]) > CLEAR * (own + noise) + ROUNDING:
            answers.setdefault("violations", []).append(
                f'{name} gives a model that predicts each label "{key}" {value:.4g}, and one that predicts '
                f"{PREDICTORS[offset]} at each token {others[offset][key]:.4g} (a random one {first[key]:.4g}): "
                "predictions and labels are not shifted by one"
            )
        if own > noise + ROUNDING and abs(padded[key] - value) > ROUNDING * max(1.0, abs(value)):
            answers.setdefault("warnings", []).append(
                f'"{key}" of {name} counts tokens without a label: {PADDING} more columns of padding change it from '
                f"{value:.4g} to {padded[key]:.4g} for a model that predicts each label"
            )
        if own > noise + ROUNDING and key.removeprefix("eval_") == best and (value > first[key]) is not is_greater:
            text = f"a model that predicts each label has {value:.4g}, a random one {first[key]:.4g}"
            answers.setdefault("violations", []).append(KEPT.format(key, text, is_greater))
        if own > noise + ROUNDING and not answers:
            answers["notes"] = [f"{METRICS}: {name} is best for a model that predicts each label"]


def read_given(args: Any, name: str) -> Any:
    """Return the value that a script gives a setting, which the rehearsal may replace."""
    return GIVEN.get(id(args), (None, (), {}))[2].get(name, getattr(args, name, None))


def _read_best(args: Any) -> tuple[str, bool]:
    """Return the metric by which a trainer chooses its best checkpoint, and whether a greater one is better."""
    name, is_greater = (read_given(args, own) for own in ("metric_for_best_model", "greater_is_better"))
    return (str(name).removeprefix("eval_"), bool(is_greater)) if name and is_greater is not None else ("", False)


def _evaluate(
    trainer: Any, labels: Any, size: int, offset: int | None, seed: int, padding: int = 0
) -> dict[str, float]:
    """Return the metrics of a model whose logits at a token are of the label `offset` tokens later, or are random."""
    import torch
    from transformers import EvalPrediction

    labels = torch.nn.functional.pad(labels, (0, PADDING), value=IGNORED)
    tokens = torch.randint(size, labels.shape, generator=torch.Generator().manual_seed(seed))
    labels, tokens = (own[:, : own.shape[1] - PADDING + padding] for own in (labels, tokens))
    if offset is not None:
        shifted = torch.nn.functional.pad(labels[:, offset:], (0, offset), value=IGNORED)
        tokens = torch.where(shifted != IGNORED, shifted, tokens)
    logits = 8.0 * torch.nn.functional.one_hot(tokens, size).float()
    predictions: Any = logits
    if trainer.preprocess_logits_for_metrics is not None:
        predictions = trainer.preprocess_logits_for_metrics(logits, labels)
    is_tuple = isinstance(predictions, (tuple, list))
    arrays = tuple(own.numpy() for own in predictions) if is_tuple else predictions.numpy()
    values = trainer.compute_metrics(EvalPrediction(predictions=arrays, label_ids=labels.numpy()))
    return {str(key): float(value) for key, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        return math.isfinite(float(value))
    return False


def ask_collator(recorder: Any, rows: Any, collate: Any) -> None:
    """Ask a script's function that makes batches of a data set's rows."""
    own = getattr(collate, "data_collator", collate)  # in transformers' `RemoveColumnsCollator`
    if is_foreign(own) or is_foreign(type(own).__call__):
        ask_in_fork(recorder, "batch", functools.partial(_compare_rows, rows, collate, describe_code(own)))


def _compare_rows(rows: Any, collate: Any, name: str, answers: dict[str, Any]) -> None:
    """Compare each row's tokens and labels in a batch with those that it has alone, and in another order."""
    import torch

    given = [rows[number] for number in range(min(len(rows), MAX_ROWS))]
    lengths: dict[tuple[int, int], int] = {}  # tokens that the mask shows, by row and size of the batch

    def read(numbers: list[int]) -> dict[int, Any]:
        batch = collate([copy.deepcopy(given[n]) for n in numbers])
        tokens, labels, mask = (batch[key] for key in ("input_ids", "labels", "attention_mask"))
        if not len(tokens) == len(numbers) or not tokens.shape == labels.shape == mask.shape:
            raise ValueError("not a row for each")  # packed
        ends = [
            max([0, *(row != IGNORED).nonzero().flatten().add(1).tolist()]) for row in labels
        ]  # a mask may leave padding visible
        kept = [(mask[n] != 0) & (torch.arange(mask.shape[1]) < end) for n, end in enumerate(ends)]
        lengths.update({(n, len(numbers)): int((mask[r] != 0).sum()) for r, n in enumerate(numbers)})
        return {n: (tokens[r][kept[r]].tolist(), labels[r][kept[r]].tolist()) for r, n in enumerate(numbers)}

    numbers = list(range(len(given)))
    together, again, back = read(numbers), read(numbers), read(numbers[::-1])
    alone = {n: read([n])[n] for n in numbers}
    if together != again:
        return  # drawn at random
    for other, where in ((alone, "alone"), (back, "in the batch's other order")):
        changed = [n for n in numbers if other[n] != together[n]]
        if changed:
            first = changed[0]
            length, full = lengths[first, len(numbers)], lengths[first, 1]
            is_cut = length < full
            part = PARTS[length == full and together[first][0] in (other[first][0], [])]
            what = f"{length} tokens, and {full}" if is_cut else f"other {part} than"
            answers["warnings" if is_cut else "violations"] = [
                f"{name} gives {len(changed)} of {len(numbers)} rows {what} {where}: what a row trains depends on the "
                "other rows of its batch"
            ]
            return

"""Evaluates some rows twice in a fork of a training, if its trainer has rows for that.

An evaluation must run, know the metric that chooses the best checkpoint, give the same again and the training's loss,
leave the weights as they are, and use other rows than the training.

transformers 5.17.0 trainer.py (`get_batch_samples`; `evaluate`, at whose end callbacks are called; then `_evaluate`
calls `_determine_best_metric`; the same in 4.57).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import time
import traceback
from collections.abc import Iterator
from typing import Any

from .continuing import READING_SECONDS, digest, shorten
from .modules import describe_code, is_foreign
from .relations import ask_in_fork, read_given

ROWS, BATCH = 8, 2  # of an evaluation in a fork
MAX_ROWS = 4096  # of the data sets that are compared
SAME_ROWS, SAME_TARGETS = 0.1, 0.5  # shares of the evaluation's rows that may be training's
LEAST_TARGETS = 8  # tokens: shorter answers, such as a class, are alike in many rows
ROUNDING = 1e-5  # relative, of a loss
REPEATED = "an evaluation of"  # begins a note
FAR = 0.25  # relative, of two losses: they may differ in whether a row's first token counts
STEPS = 2  # before the evaluation: its code may need what a training sets


def note_evaluation(recorder: Any, trainer: Any) -> None:
    """Let the recorder ask a trainer's evaluation as it trains."""
    recorder.questions[STEPS] = functools.partial(ask_evaluation, recorder, trainer)


def ask_evaluation(recorder: Any, trainer: Any) -> None:
    """Ask the evaluation of a trainer that has rows for it and generates nothing."""
    rows = trainer.eval_dataset
    rows = next(iter(rows.values())) if type(rows) is dict else rows
    is_generated = "ATTNCHECK_DRIVER" in os.environ or getattr(trainer.args, "predict_with_generate", False)
    if rows is not None and not is_generated:
        ask_in_fork(recorder, "update", functools.partial(_evaluate_twice, trainer, rows))


def _evaluate_twice(trainer: Any, rows: Any, answers: dict[str, Any]) -> None:
    """Evaluate the same rows twice, and look for them among those of the training."""
    trainer.args.per_device_eval_batch_size, trainer.args.dataloader_num_workers = BATCH, 0
    modes, seen = set[bool](), list[list[str]]()
    strategy = read_given(trainer.args, "eval_strategy")
    is_single = rows is trainer.eval_dataset and getattr(strategy, "value", strategy) not in (None, "no")
    name = is_single and read_given(trainer.args, "metric_for_best_model")

    def keep(model: Any, arguments: Any, inputs: Any) -> None:
        modes.add(model.training)
        tokens = inputs.get("input_ids", ())
        masks = inputs.get("attention_mask")
        masks = [own == own for own in tokens] if masks is None else masks != 0
        seen[-1] += [digest(own[mask]) for own, mask in zip(tokens, masks)]  # other rows of a batch lengthen padding

    trainer.model.register_forward_pre_hook(keep, with_kwargs=True)
    losses, few = list[float](), shorten(rows, ROWS)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    violations, warnings = list[str](), list[str]()
    with contextlib.suppress(Exception):  # a stream may end with an error
        warnings += _iter_shared(trainer.train_dataset, rows) if has_one_source() else ()
    try:
        for _ in range(2):
            seen.append([])
            metrics = trainer.evaluate(few)
            losses.append(float(metrics.get("eval_loss", 0.0)))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(traceback.format_exception_only(error)[-1].split())[:300]
        is_own = is_foreign(inspect.unwrap(type(trainer).evaluate)) or "site-packages" not in place.filename
        answers["notes" if is_own else "warnings"] = [  # a script's metrics need not know synthetic rows
            f"evaluating ends with {text} ({os.path.basename(place.filename)}:{place.lineno})",
            *warnings,
        ]
        return
    keys = ", ".join(key for key in metrics if not key.endswith(("_runtime", "_per_second")))
    if name and hasattr(trainer, "_determine_best_metric"):
        trainer.args.metric_for_best_model = name
        try:
            trainer._determine_best_metric(metrics, None)
        except KeyError:
            violations.append(f"the first evaluation ends: metric_for_best_model={name} is not one of {keys}")
    after = dict(trainer.model.named_parameters())
    changed = [own for own, value in before.items() if own in after and not value.equal(after[own])]
    if changed:
        parts = (type(trainer).evaluate, *(callback.on_evaluate for callback in trainer.callback_handler.callbacks))
        code = ", ".join(describe_code(part) for part in parts if is_foreign(part))
        text = f"{len(changed)} of {len(before)} parameters of the trained model"
        violations.append(f"an evaluation changes {text}{f', with {code}' * bool(code)}")
    if True in modes:
        violations.append("an evaluation computes the model in training mode, with its dropouts")
    first, second = losses
    is_same = not changed and sorted(seen[0]) == sorted(seen[1])  # otherwise its collator draws tokens
    if is_same and abs(first - second) > ROUNDING * abs(first):
        why = f": it joins {BATCH} other rows in a batch each time" if seen[0] != seen[1] else ""
        warnings.append(f"two evaluations of the same rows and weights give {first:.5g} and {second:.5g}{why}")
    with contextlib.suppress(Exception):  # a trainer of another kind
        warnings += [] if changed else _compare_with_training(trainer, few)
    answers |= {"violations": violations, "warnings": warnings}
    answers["notes"] = [f"{REPEATED} {len(seen[0])} rows gives {keys}"]


def _compare_with_training(trainer: Any, rows: Any) -> Iterator[str]:
    """Yield a line if the evaluation loss of rows in one batch is another than their training loss without dropout."""
    trainer.args.per_device_eval_batch_size = ROWS
    evaluated = trainer.evaluate(rows)["eval_loss"]
    batches, count = trainer.get_batch_samples(iter(trainer.get_eval_dataloader(rows)), 1, trainer.args.device)
    trainer.model.eval()
    trained = float(trainer.compute_loss(trainer.model, trainer._prepare_inputs(batches[0]), num_items_in_batch=count))
    if abs(evaluated - trained) > FAR * max(abs(evaluated), abs(trained)):
        yield f"a batch of {len(rows)} rows has the evaluation loss {evaluated:.5g} and the training loss {trained:.5g}"


def has_one_source() -> bool:
    """Return whether the rows are the launch's own, or one file's: several files and splits have the same rows here."""
    names = os.listdir(os.environ["ATTNCHECK_WATCH"])
    sets, splits = ([name for name in names if name.startswith(own)] for own in ("data-set-", "absent-split-"))
    is_one = len(sets) == 1 and len(splits) < 2 and "absent-split-all" not in splits
    return is_one if "ATTNCHECK_ROWS" in os.environ else "ATTNCHECK_MAX_WEIGHTS" in os.environ


def _iter_shared(trained: Any, rows: Any) -> Iterator[str]:
    """Yield a line if an evaluation's rows, or else their targets, are those of training rows."""
    own, others = _read_rows(trained), _read_rows(rows)
    count = len(others)
    for place, what, limit in ((0, "rows", SAME_ROWS), (1, "rows' targets", SAME_TARGETS)):
        known = {row[place] for row in own}
        shared = sum(bool(row[place]) and row[place] in known for row in others)
        if count and shared > limit * count:
            yield f"{shared} of {count} {what} of the evaluation are those of training rows"
            return


def _read_rows(rows: Any) -> list[tuple[str, str]]:
    """Return digests of the first rows' tokens and of their targets; "" for few targets."""
    known, until = [], time.monotonic() + READING_SECONDS
    numbered = (rows[number] for number in range(len(rows))) if hasattr(rows, "__len__") else iter(rows)
    for row in itertools.islice(numbered, MAX_ROWS):
        if time.monotonic() > until:
            break
        if "input_ids" not in row:  # pairs
            return []
        ids = [*row["input_ids"]]
        labels = row.get("labels") or [n if kept else -1 for n, kept in zip(ids, row.get("completion_mask") or ids)]
        targets = [label for label in labels if label >= 0]
        known.append((digest(ids), digest(targets) if len(targets) >= LEAST_TARGETS else ""))
    return known

"""Lets a trainer evaluate once while its steps are recorded, if the script has code for evaluations: what it changes.

In a fork before it trains, each trainer that has rows for it evaluates some of them twice: it must run and repeat.

transformers 5.17.0 trainer.py (`_evaluate` calls `evaluate`, at whose end callbacks are called, then
`_determine_best_metric`; the same in 4.57).
"""

from __future__ import annotations

import functools
import inspect
import os
import traceback
from collections.abc import Iterator
from typing import Any

from .continuing import digest, shorten
from .modules import describe_code, is_foreign
from .relations import ask_in_fork, read_given
from .script_code import CODE

ROWS, BATCH = 8, 2  # of an evaluation in a fork
MAX_ROWS = 4096  # of the data sets that are compared
SAME_ROWS, SAME_TARGETS = 0.1, 0.5  # shares of the evaluation's rows that may be training's
LEAST_TARGETS = 8  # tokens: shorter answers, such as a class, are alike in many rows
ROUNDING = 1e-5  # relative, of a loss
REPEATED = "an evaluation of"  # begins a note
EVERY = 2  # steps; within those that are recorded
STRATEGIES: set[str] = set()  # when the script's settings let its trainer evaluate


def evaluate_own(trainer: Any) -> None:
    """Let a trainer evaluate that the script lets evaluate with its own code."""
    callbacks = [callback.on_evaluate for callback in trainer.callback_handler.callbacks]
    own = [describe_code(code) for code in (type(trainer).evaluate, *callbacks) if is_foreign(code)]
    if own and trainer.eval_dataset is not None and STRATEGIES - {"no"}:
        CODE["evaluates"] = own
        trainer.args.eval_strategy, trainer.args.eval_steps = type(trainer.args.eval_strategy)("steps"), EVERY


def watch_evaluations(cls: Any) -> None:
    """Note the parameters that a class's evaluations change. Only the first is computed, and its errors are left."""
    evaluate, run, results = cls.evaluate, getattr(cls, "_evaluate", None), list[Any]()
    if run is None:
        return

    @functools.wraps(evaluate)
    def evaluate_once(self: Any, *arguments: Any, **options: Any) -> Any:
        if "evaluates" not in CODE:
            return evaluate(self, *arguments, **options)
        if not results:
            results.append({})
            try:
                results[0] = evaluate(self, *arguments, **options)
            except Exception:  # of the synthetic rows
                return {}
        return results[0]

    @functools.wraps(run)
    def compare(self: Any, *arguments: Any, **options: Any) -> Any:
        is_first = "evaluates" in CODE and not results
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()} if is_first else {}
        result = run(self, *arguments, **options)
        after = dict(self.model.named_parameters())
        changed = [name for name, value in before.items() if name in after and not value.equal(after[name])]
        if changed:
            CODE["evaluation"] = [f"{len(changed)} of {len(before)} parameters", *CODE["evaluates"]]
        return result

    cls.evaluate, cls._evaluate = evaluate_once, compare


def ask_evaluation(recorder: Any, trainer: Any) -> None:
    """Ask the evaluation of a trainer that has rows for it and generates nothing."""
    rows = trainer.eval_dataset
    rows = next(iter(rows.values())) if type(rows) is dict else rows
    is_generated = "ATTNCHECK_DRIVER" in os.environ or getattr(trainer.args, "predict_with_generate", False)
    if rows is not None and not is_generated:
        ask_in_fork(recorder, "update", functools.partial(_evaluate_twice, trainer, rows))


def _evaluate_twice(trainer: Any, rows: Any, answers: dict[str, Any]) -> None:
    """Evaluate the same rows twice, and look for them among those of the training."""
    CODE.pop("evaluates", None)
    trainer.args.per_device_eval_batch_size, trainer.args.dataloader_num_workers = BATCH, 0
    name, modes, seen = read_given(trainer.args, "metric_for_best_model"), set[bool](), list[list[str]]()

    def keep(model: Any, arguments: Any, inputs: Any) -> None:
        modes.add(model.training)
        seen[-1] += map(digest, inputs.get("input_ids", ()))

    trainer.model.register_forward_pre_hook(keep, with_kwargs=True)
    losses, few = list[float](), shorten(rows, ROWS)
    violations, warnings = list[str](), [*_iter_shared(trainer.train_dataset, rows)]
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
    if True in modes:
        violations.append("an evaluation computes the model in training mode, with its dropouts")
    first, second = losses
    is_same = sorted(seen[0]) == sorted(seen[1])  # otherwise its collator draws tokens
    if is_same and abs(first - second) > ROUNDING * abs(first):
        why = f": it joins {BATCH} other rows in a batch each time" if seen[0] != seen[1] else ""
        warnings.append(f"two evaluations of the same rows and weights give {first:.5g} and {second:.5g}{why}")
    answers |= {"violations": violations, "warnings": warnings}
    answers["notes"] = [f"{REPEATED} {len(seen[0])} rows gives {keys}, and the same again"] * (not violations)


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
    """Return digests of the first rows' tokens and of their targets; "" for few targets, and nothing of streams."""
    known = []
    for number in range(min(len(rows), MAX_ROWS)) if hasattr(rows, "__len__") else ():
        row = rows[number]
        if "input_ids" not in row:  # pairs
            return []
        ids = [*row["input_ids"]]
        labels = row.get("labels") or [n if kept else -1 for n, kept in zip(ids, row.get("completion_mask") or ids)]
        targets = [label for label in labels if label >= 0]
        known.append((digest(ids), digest(targets) if len(targets) >= LEAST_TARGETS else ""))
    return known

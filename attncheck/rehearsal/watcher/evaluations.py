"""Lets a trainer evaluate once while its steps are recorded, if the script has code for evaluations: what it changes.

transformers 5.17.0 trainer.py (`_evaluate` calls `evaluate`, at whose end callbacks are called; the same in 4.57).
"""

from __future__ import annotations

import functools
from typing import Any

from .modules import describe_code, is_foreign
from .script_code import CODE

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

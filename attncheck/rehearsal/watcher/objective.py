"""Asks the terms of a script's loss in which direction they act, by the loss's derivatives.

A term that its variable names must act as the name says: the loss grows with a divergence, a penalty or a margin, and
falls with a bonus. A clipped policy loss must stop where a response has become much more likely and has a positive
advantage, and not where it has become less likely.

Source: TRL 1.16.0 trainer/grpo_trainer.py (`_compute_loss`: `old_per_token_logps`, `ref_per_token_logps`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from .absent import is_script
from .modules import describe_code, is_foreign
from .relations import ask_in_fork, report
from .script_code import find_script_frame, name_line

END = r"(?:_loss|_term|_mean)?"
SIGNS = {  # a term's name -> 1 if the loss should grow with the term, -1 if it should fall
    re.compile(rf"(?:.*_)?(?:kls?|kld|kl_?div|kl_?divergence|divergence|penalty){END}", re.IGNORECASE): 1,
    re.compile(rf"(?:.*_)?bonus{END}", re.IGNORECASE): -1,
}
MARGIN = "margin"  # a column that TRL's rewards and preferences subtract: one of the loss is what it reaches
MAX_LOSSES = 12  # that are looked at: a divergence is 0 before the first step
SMALL = 1e-7  # of a term: less is rounding
RATIO, DISTANCE = 2.0, 1.0  # of a response's probability to the old one's; of its logarithm to the reference's
UNDONE = 0.25  # of the vocabulary's size: a divergence's factor that undoes a division by it
MODULE_FRAMES = 6  # of torch.nn.KLDivLoss, between the script and the function
STOPPED = 0.01  # of the largest gradient


def watch_divergence(recorder: Any, functional: Any) -> None:
    """Report a script's divergence of a vocabulary's distributions that is also divided by the vocabulary's size.

    torch 2.13 nn/functional.py (`kl_div`, whose reduction "mean", the default, divides by all elements). A factor of
    about that size undoes it: the term's own gradient shows the factor.
    """
    original, judged = functional.kl_div, set[str]()
    signature = inspect.signature(original)

    @functools.wraps(original)
    def kl_div(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        size = given.arguments["input"].shape[-1:]
        frame = find_script_frame(sys._getframe(1), MODULE_FRAMES)
        is_mean = given.arguments["reduction"] == "mean" and result.requires_grad and frame is not None
        if is_mean and any(getattr(own.config, "vocab_size", 0) == size[0] for own in recorder.models):
            result.register_hook(functools.partial(_judge_divergence, recorder, judged, name_line(frame), size[0]))
        return result

    functional.kl_div = kl_div


def _judge_divergence(recorder: Any, judged: set[str], place: str, size: int, gradient: Any) -> None:
    """Report a divergence's line once if no factor in the loss undoes the division by the vocabulary's size."""
    if place not in judged and not recorder.is_paused:
        judged.add(place)
        if abs(float(gradient)) < UNDONE * size:
            text = f"kl_div in {place} has the reduction 'mean', which divides the divergence by tokens × vocabulary"
            text += f": it is {size} times too small here, and reduction='batchmean' over tokens is a mean over them"
            report(recorder.folder, "loss", violations=[text])


def watch_terms(recorder: Any, trainer: Any) -> None:
    """Look at the terms of a trainer's loss that the script computes."""
    given = trainer.compute_loss_func
    own = [*_list_own_losses(trainer), *([given] if given is not None and is_foreign(given) else [])]
    original, seen = trainer.compute_loss, list[Any]()

    @functools.wraps(original)
    def compute_loss(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        if len(seen) >= MAX_LOSSES:
            return original(model, inputs, *arguments, **options)
        terms: dict[str, Any] = {}
        seen.append(None)
        if isinstance(inputs, Mapping) and getattr(inputs.get(MARGIN), "is_floating_point", bool)():
            terms[MARGIN] = inputs[MARGIN].clone().requires_grad_() * 1  # the script may change it in place
            inputs = {**inputs, **terms}
        with _keep_locals(terms):
            result = original(model, inputs, *arguments, **options)
        if judge_terms(recorder, result[0] if isinstance(result, tuple) else result, terms, describe_code(own[0])):
            seen.extend([None] * MAX_LOSSES)
        return result

    if own:
        trainer.compute_loss = compute_loss


def _list_own_losses(trainer: Any) -> list[Any]:
    """Return the methods of a trainer that compute its loss and are the script's."""
    names = filter(functools.partial(hasattr, trainer), ("_compute_loss", "compute_loss"))
    return [own for own in (inspect.unwrap(getattr(trainer, name)) for name in names) if is_foreign(own)]


def _read_terms(frame: Any) -> dict[str, Any]:
    """Return the variables of a script's function whose names are those of terms."""
    return {name: value for name, value in frame.f_locals.items() if _find_sign(name) and name != MARGIN}


@contextlib.contextmanager
def _keep_locals(terms: dict[str, Any]) -> Iterator[None]:
    """Add the named terms that are variables of the script's functions when they return."""
    before, known = sys.getprofile(), dict[Any, bool]()

    def leave(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "return":
            if code not in known:
                known[code] = any(map(_find_sign, code.co_varnames)) and is_script(frame.f_globals)
            if known[code]:
                terms.update(_read_terms(frame))

    sys.setprofile(leave)
    try:
        yield
    finally:
        sys.setprofile(before)


def watch_loop(recorder: Any) -> Callable[[Any, Any], None]:
    """Return a function that judges the terms of a loop, given a loss and the frame that differentiates it."""
    seen: list[None] = []

    def judge(loss: Any, frame: Any) -> None:
        own = find_script_frame(frame) if len(seen) < MAX_LOSSES else None
        seen.append(None)
        terms = {} if own is None else _read_terms(own)
        if terms and judge_terms(recorder, loss, terms, name_line(own), "warnings"):  # a loop may train anything
            seen.extend([None] * MAX_LOSSES)

    return judge


def judge_terms(recorder: Any, loss: Any, terms: Mapping[str, Any], place: str, kind: str = "violations") -> bool:
    """Report the terms that act in the wrong direction; return whether one could be judged."""
    import torch

    named = {
        name: value
        for name, value in terms.items()
        if torch.is_tensor(value)
        and value.requires_grad
        and value.numel()
        and value.max() > SMALL
        and value.min() > -SMALL
    }
    wrong: list[str] = []
    judged: list[str] = []
    with contextlib.suppress(Exception):  # the training goes on without an answer
        gradients = torch.autograd.grad(loss, [*named.values()], retain_graph=True, allow_unused=True)
        for name, gradient in zip(named, gradients):
            acting = 0.0 if gradient is None else _find_sign(name) * gradient
            if gradient is not None and bool(gradient.any()):
                judged.append(name)
                wrong += [name] * bool((acting <= 0).all())
    if wrong:
        verb = "grows" if _find_sign(wrong[0]) < 0 else "falls"
        text = f"the loss in {place} {verb} as {', '.join(wrong)} grows: the term has the wrong sign"
        report(recorder.folder, "loss", **{kind: [text]})
    elif judged:
        report(recorder.folder, "loss", notes=[f"the loss acts on {', '.join(judged)} as the name says"])
    return bool(judged)


def _find_sign(name: str) -> int:
    return next((sign for words, sign in SIGNS.items() if words.fullmatch(name)), 0) or int(name == MARGIN)


def ask_policy_loss(
    folder: str, trainer: Any, method: str, compute: Callable[[Any], Any], inputs: Mapping[str, Any]
) -> None:
    """Ask a policy's loss, which a script computes, where it stops, and in which direction it is from a reference."""
    own = _list_own_losses(trainer)
    if own:
        question = functools.partial(_probe, trainer, method, compute, inputs, describe_code(own[0]))
        ask_in_fork(SimpleNamespace(folder=folder), "loss", question, True)


def _probe(
    trainer: Any,
    method: str,
    compute: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    place: str,
    answers: dict[str, Any],
) -> None:
    import torch

    original, results = getattr(trainer, method), list[Any]()

    def keep(*arguments: Any, **options: Any) -> Any:
        results.append(original(*arguments, **options))
        return results[-1]

    setattr(trainer, method, keep)
    compute(inputs)
    first = results[0]
    values = first[0] if isinstance(first, tuple) else first["logps"] if isinstance(first, dict) else first
    values = values.detach()

    def differentiate(advantage: float, ratio: float = 1.0, distance: float = 0.0) -> float:
        """Return the derivative of the loss by the log-probabilities of all tokens."""
        leaf = values.clone().requires_grad_()
        given = (
            (leaf, *first[1:])
            if isinstance(first, tuple)
            else {**first, "logps": leaf}
            if isinstance(first, dict)
            else leaf
        )
        setattr(trainer, method, lambda *arguments, **options: given)
        changed = {**inputs, "advantages": torch.full_like(inputs["advantages"], advantage)}
        changed["old_per_token_logps"] = values - math.log(ratio)
        if inputs.get("ref_per_token_logps") is not None:
            changed["ref_per_token_logps"] = values - distance
        (gradient,) = torch.autograd.grad(compute(changed), leaf)
        return float(gradient.sum())

    likelier, rarer = (differentiate(1.0, ratio) for ratio in (RATIO, 1 / RATIO))
    if abs(rarer) < STOPPED * abs(likelier):
        answers["violations"] = [
            f"the policy loss in {place} stops where a response with a positive advantage has become {RATIO:g} times "
            f"less likely, and not where it is {RATIO:g} times likelier: its clipping takes the larger objective "
            "instead of the smaller one, and bounds nothing"
        ]
    elif abs(likelier) < STOPPED * abs(rarer):
        answers["notes"] = [f"the policy loss in {place} stops where a rewarded response is {RATIO:g} times likelier"]
    has_reference = inputs.get("ref_per_token_logps") is not None
    above, below = (differentiate(0.0, 1.0, distance) if has_reference else 0.0 for distance in (DISTANCE, -DISTANCE))
    if above < 0 < below:
        answers.setdefault("violations", []).append(
            f"the loss in {place} moves tokens that are likelier than in the reference model farther away from it: its "
            "divergence has the wrong sign"
        )

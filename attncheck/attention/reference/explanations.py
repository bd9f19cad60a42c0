"""Finds the known mistake whose results a wrong backend returned.

Each mistake is tried in both passes, in the forward or in the backward alone. One explains a tensor if the backend's
error against it is within the budget, or if it leaves less than `MAX_REST` of the error against the right result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.dense import MAX_SCORES, DenseAttention
from attncheck.attention.reference.mistakes import iter_mistakes
from attncheck.attention.reference.oracle import Reference

MAX_REST = 0.1  # of an explained error, in norm
MAX_FIRST_REST = 0.6  # beyond it, a mistake is not looked at more closely
ALIKE = 1.5  # explanations whose rests differ by less fit equally well
MAX_ALIKE = 2
FORWARD = ("out", "lse")
GRADIENTS = ("dq", "dk", "dv", "dsinks")


class WrongCall(NamedTuple):
    """A backend's results on a case where they are wrong. `measure` returns each tensor's error over its budget."""

    inputs: Inputs
    outputs: Outputs
    exact: Reference
    measure: Callable[[Reference], Mapping[str, float]]


@dataclass(frozen=True)
class _Explanation:
    mistake: str
    scope: str  # the pass, "" if it is in both
    explained: tuple[str, ...]  # wrong tensors
    unexplained: int  # their number
    spoilt: int  # right tensors that the mistake would make wrong
    rest: float


def explain(calls: Iterable[WrongCall]) -> str:
    """Return the mistake that explains the wrong results of one backend, "" if none does or many do.

    What explains the results of one call must explain those of the later ones too.
    """
    known: dict[tuple[str, str], list[_Explanation]] = {}
    for call in calls:
        if call.inputs.case.dropout or call.exact.rows is not None or call.inputs.case.scores > MAX_SCORES:
            continue
        explanations = {(x.mistake, x.scope): x for x in _Search(call).find(known)}
        if known and not explanations:
            return ""
        known = {key: [*known.get(key, ()), x] for key, x in explanations.items()}

    def rank(explanations: list[_Explanation]) -> tuple[int, int]:
        return sum(x.unexplained for x in explanations), sum(x.spoilt for x in explanations)

    def rest(explanations: list[_Explanation]) -> float:
        return max(x.rest for x in explanations)

    if not known:
        return ""
    least = min(map(rank, known.values()))
    best = sorted((x for x in known.values() if rank(x) == least), key=rest)
    scopes: dict[str, list[_Explanation]] = {}
    for first, *_ in (x for x in best if rest(x) <= ALIKE * rest(best[0])):
        scopes.setdefault(first.mistake, []).append(first)
    names = [mistake + _describe_scope(alike) for mistake, alike in scopes.items()]
    return " or as if ".join(names) if len(names) <= MAX_ALIKE else ""


def _describe_scope(alike: list[_Explanation]) -> str:
    """Return the pass, unless several fit, or the tensors that are explained, unless all are."""
    first, *others = alike
    if first.unexplained:
        return f", in {' and '.join(first.explained)}"
    return "" if others else first.scope


class _Search:
    """The mistakes that explain one wrong call."""

    def __init__(self, call: WrongCall) -> None:
        self._call, self._right = call, DenseAttention.of(call.inputs)
        self._before = call.measure(call.exact)
        self._wrong = [name for name in (*FORWARD, *GRADIENTS) if self._before.get(name, 0.0) > 1.0]

    def find(self, chosen: Collection[tuple[str, str]]) -> Iterator[_Explanation]:
        """Yield every explanation, or those among the `chosen` ones."""
        right = self._right.forward()
        is_forward_wrong = bool(set(self._wrong) & set(FORWARD))
        for mistake, changed in iter_mistakes(self._right):
            if chosen and all(mistake != name for name, _ in chosen):
                continue
            if is_forward_wrong:
                forward = changed.forward()
                if not self._judge(mistake, "", forward):
                    continue
                tries = {"": lambda: changed, ", in the forward": lambda: self._right}  # noqa: B023
            else:
                forward = right | {"lse": changed.save_lse(right["lse"])}
                tries = {", in the backward": lambda: changed}  # noqa: B023
            for scope, attention in tries.items():
                results = forward if is_forward_wrong else {}
                if self._call.outputs.dq is not None:
                    results = results | attention().backward(forward)
                explanation = self._judge(mistake, scope, results)
                if explanation and (not chosen or (mistake, scope) in chosen):
                    yield explanation

    def _judge(self, mistake: str, scope: str, results: Mapping[str, Tensor]) -> _Explanation | None:
        """Return the explanation by these results, None if they explain no wrong tensor."""
        fields = {
            name: x[..., 0] if name == "lse" else x if name == "dsinks" else x.transpose(1, 2)
            for name, x in results.items()
        }
        changed = replace(self._call.exact, **fields)  # type: ignore[arg-type]
        rests = {name: self._error(name, changed) / self._error(name) for name in self._wrong if name in results}
        if min(rests.values(), default=1.0) > MAX_FIRST_REST:
            return None
        ratios = self._call.measure(changed)
        explained = tuple(name for name, rest in rests.items() if ratios[name] <= 1.0 or rest < MAX_REST)
        if not explained:
            return None
        spoilt = sum(before <= 1.0 < ratios[name] for name, before in self._before.items())
        return _Explanation(
            mistake, scope, explained, len(self._wrong) - len(explained), spoilt, max(rests[name] for name in explained)
        )

    def _error(self, name: str, reference: Reference | None = None) -> float:
        """Return the norm of a tensor's error against a reference, by default the exact one."""
        exact = self._call.exact if reference is None else reference
        want = getattr(exact, name)
        error, judged = getattr(self._call.outputs, name).to(want.dtype) - want, exact.judged
        if judged is not None and name in ("out", "dq", "lse"):
            error = torch.where(judged[:, None] if name == "lse" else judged[:, :, None, None], error, 0.0)
        return float(error.norm().nan_to_num(torch.inf, torch.inf).clamp_min(1e-30))

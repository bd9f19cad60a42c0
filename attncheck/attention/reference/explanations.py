"""Finds the known mistake whose results a wrong backend returned.

Each mistake is tried in both passes, in the forward or in the backward alone. One explains a tensor if the backend's
error against it is within the budget, or if it leaves less than `MAX_REST` of the error against the right result, and
if it fits every row: a row's error must be explained as well, and a right row must be right with the mistake too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.dense import MAX_SCORES, DenseAttention
from attncheck.attention.reference.mistakes import iter_mistakes
from attncheck.attention.reference.oracle import Reference
from attncheck.core.lists import group_values
from attncheck.core.verdicts import BUDGETS, FAIL_FACTOR, LSE_BUDGET

MAX_REST = 0.1  # of an explained error, in norm
MAX_ROW_REST = 0.25  # of the error of one row…
MAX_WORST_ROW_REST = 0.05  # …or of the worst one: a mistake changes the noise of rows too
MAX_FIRST_REST = 0.6  # beyond it, a mistake is not looked at more closely
ALIKE = 1.5  # explanations whose rests differ by less fit equally well
MAX_ALIKE = 2
INFINITE = 1e15  # an error that is not finite; its square fits into float32
MAX_LATER_SCORES = 4 * MAX_SCORES  # only the mistakes that explain an earlier call are tried
FORWARD = ("out", "lse")
GRADIENTS = ("dq", "dk", "dv", "dsinks")


class WrongCall(NamedTuple):
    """A backend's results on a wrong case, or on one like it. `measure` returns each tensor's error over its budget."""

    inputs: Inputs
    outputs: Outputs
    exact: Reference
    measure: Callable[[Reference], Mapping[str, float]]


@dataclass(frozen=True)
class _Explanation:
    mistake: str
    scope: str  # the pass, "" if it is in both
    explained: tuple[str, ...]  # wrong tensors
    unexplained: int  # the number of the others
    rest: float


Known = dict[tuple[str, str], list[_Explanation]]  # by mistake and scope: how it explains each call


def explain(calls: Iterable[WrongCall], known: Known) -> str:
    """Return the mistake that explains the wrong results of one backend, "" if none does or many do.

    What explains the results of one call must explain those of the others too. `known` holds the explanations of
    earlier calls, {} before the first one, and receives those that are left.
    """
    is_first = not known
    for call in calls:
        scores = call.inputs.case.scores
        if (
            call.inputs.case.dropout
            or call.exact.rows is not None
            or scores > (MAX_SCORES if is_first else MAX_LATER_SCORES)
        ):
            continue
        search = _Search(call)
        if is_first and not search.wrong:
            continue
        left = {(x.mistake, x.scope): [*known.get((x.mistake, x.scope), ()), x] for x in search.find(known)}
        known.clear()
        known.update(left)
        if not known:
            return ""
        is_first = False

    def rank(explanations: list[_Explanation]) -> int:
        return sum(x.unexplained for x in explanations)

    def rest(explanations: list[_Explanation]) -> float:
        return max(x.rest for x in explanations)

    if not known:
        return ""
    least = min(map(rank, known.values()))
    best = sorted((x for x in known.values() if rank(x) == least), key=rest)
    scopes = group_values((first.mistake, first) for first, *_ in (x for x in best if rest(x) <= ALIKE * rest(best[0])))
    names = [mistake + _describe_scope(alike) for mistake, alike in scopes.items()]
    return " or as if ".join(names) if len(names) <= MAX_ALIKE else ""


def _describe_scope(alike: list[_Explanation]) -> str:
    """Return the pass, unless several fit, or the tensors that are explained, unless all are."""
    first, *others = alike
    if first.unexplained:
        return f", in {' and '.join(first.explained)}"
    return "" if others else first.scope


class _Search:
    """The mistakes that explain one call."""

    def __init__(self, call: WrongCall) -> None:
        self._call, self._right = call, DenseAttention.of(call.inputs)
        self._before = call.measure(call.exact)
        self.wrong = [name for name in (*FORWARD, *GRADIENTS) if self._before.get(name, 0.0) > 1.0]
        self._errors = {name: self._row_errors(name, call.exact) for name in self._before}

    def find(self, known: Known) -> Iterator[_Explanation]:
        """Yield every explanation, or those among the `known` ones that explain the same tensors here."""
        right = self._right.forward()
        is_forward_wrong = bool(set(self.wrong) & set(FORWARD))
        for mistake, changed in iter_mistakes(self._right):
            if known and all(mistake != name for name, _ in known):
                continue
            forward = changed.forward()
            tries: list[tuple[str, DenseAttention, dict[str, Tensor]]] = []
            if not self.wrong or (is_forward_wrong and self._judge(mistake, "", forward)):
                tries += [("", changed, forward), (", in the forward", self._right, forward)]
            if not is_forward_wrong:
                tries.append((", in the backward", changed, right | {"lse": changed.save_lse(right["lse"])}))
            for scope, attention, saved in tries:
                earlier = known.get((mistake, scope), [])
                if known and not earlier:
                    continue
                results = saved if forward is saved else {}  # the saved LSE alone need not be the one that is returned
                if self._call.outputs.dq is not None:
                    results = results | attention.backward(saved)
                explanation = self._judge(mistake, scope, results)
                claimed = set(earlier[0].explained).intersection(self.wrong) if earlier else set()
                if explanation and claimed.issubset(explanation.explained):
                    yield explanation

    def _judge(self, mistake: str, scope: str, results: Mapping[str, Tensor]) -> _Explanation | None:
        """Return the explanation by these results, None if they explain no wrong tensor or make a right one wrong."""
        fields = {
            name: x[..., 0] if name == "lse" else x if name == "dsinks" else x.transpose(1, 2)
            for name, x in results.items()
        }
        changed = replace(self._call.exact, **fields)  # type: ignore[arg-type]
        errors = {name: self._row_errors(name, changed) for name in self.wrong if name in results}
        rests = {
            name: float(rows.double().norm() / self._errors[name].double().norm()) for name, rows in errors.items()
        }
        if min(rests.values(), default=0.0) > MAX_FIRST_REST:
            return None
        ratios = self._call.measure(changed)
        explained = tuple(
            name
            for name, rest in rests.items()
            if (ratios[name] <= 1.0 or rest < MAX_REST) and self._fits_every_row(name, errors[name])
        )
        spoils = any(before <= 1.0 and ratios[name] > FAIL_FACTOR for name, before in self._before.items())
        if spoils or len(explained) < bool(self.wrong):
            return None
        rest = max((rests[name] for name in explained), default=0.0)
        return _Explanation(mistake, scope, explained, len(self.wrong) - len(explained), rest)

    def _fits_every_row(self, name: str, errors: Tensor) -> bool:
        """Return whether each row's error, with the mistake, is that of rounding, or a small part of what it was."""
        case = self._call.inputs.case
        sigma = self._call.exact.sigma.get(name, torch.tensor(LSE_BUDGET))
        noise = sigma.abs() if name in ("lse", "dsinks") else sigma.norm(dim=-1)
        before = self._errors[name]
        worst = before.masked_fill(before >= INFINITE, 0.0).max()
        least = torch.maximum(MAX_ROW_REST * before, MAX_WORST_ROW_REST * worst)
        return bool((errors <= torch.maximum(BUDGETS[case.dtype].z_row * noise, least)).all())

    def _row_errors(self, name: str, reference: Reference) -> Tensor:
        """Return the norm of each row's error against a reference; equal infinities differ by 0."""
        want: Tensor = getattr(reference, name)
        got, judged = getattr(self._call.outputs, name).to(want.dtype), self._call.exact.judged
        error: Tensor = (got - want).masked_fill(got == want, 0.0).nan_to_num(INFINITE, INFINITE, -INFINITE).abs()
        if judged is not None and name in ("out", "dq", "lse"):
            error = torch.where(judged[:, None] if name == "lse" else judged[:, :, None, None], error, 0.0)
        return error if name in ("lse", "dsinks") else error.norm(dim=-1)

"""Scores the outputs of a backend against the reference, and finds the worst position."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs
from attncheck.attention.reference.oracle import Reference
from attncheck.core.cases import Case, iter_segments
from attncheck.core.verdicts import HUGE, Score, slope_budget

TENSORS = ("out", "dq", "dk", "dv")


def score_outputs(
    outputs: Outputs, reference: Reference, eager: Outputs | None = None, judge_lse: bool = True
) -> list[Score]:
    """Return one score for each returned tensor; `eager` holds the yardstick's outputs in the same dtype.

    All measurements leave the device together, because each transfer waits if several workers share it.
    """
    measured: dict[str, dict[str, Tensor]] = {}
    for name in TENSORS:
        got = getattr(outputs, name)
        if got is not None:
            yardstick = getattr(eager, name) if eager is not None else None
            measured[name] = _measure_tensor(name, got, reference, yardstick)
    if outputs.lse is not None and judge_lse:
        measured["lse"] = _measure_lse(outputs.lse, reference)
    if outputs.dsinks is not None and reference.dsinks is not None:
        measured["dsinks"] = _measure_sinks(outputs.dsinks, reference)
    return [_make_score(name, numbers, reference) for name, numbers in _read_numbers(measured).items()]


def _read_numbers(measured: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, list[float]]]:
    """Return the numbers of small tensors by name, in one transfer from the device."""
    flat = [x.reshape(-1).double() for numbers in measured.values() for x in numbers.values()]
    values = iter(torch.cat(flat).tolist())
    return {
        name: {key: list(itertools.islice(values, x.numel())) for key, x in numbers.items()}
        for name, numbers in measured.items()
    }


def row_errors(name: str, got: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
    """Return z_row of every (token, head), `(batch, rows, heads)` float32, and the error, `(batch, rows, heads, d)`."""
    want, sigma = getattr(reference, name), reference.sigma[name]
    got = select_rows(name, got, reference)
    error = (got.to(want.dtype) - want).float()
    if name in ("out", "dq"):
        assert reference.judged is not None
        error = torch.where(reference.judged[:, :, None, None], error, 0.0)  # NaN times zero would be NaN
    return error.square().mean(-1).sqrt() / sigma.square().mean(-1).sqrt(), error


def select_rows(name: str, got: Tensor, reference: Reference) -> Tensor:
    """Return the rows of `got` that the reference sampled; for LSE they are along its last dimension."""
    if reference.rows is None or name in ("dk", "dv"):
        return got
    return got[..., reference.rows] if name == "lse" else got[:, reference.rows]


def _measure_tensor(name: str, got: Tensor, reference: Reference, eager: Tensor | None) -> dict[str, Tensor]:
    """Return the parts of a tensor's score and, for each head, the parts of its slope."""
    nonfinite = _count_nonfinite(name, got, reference)
    got = got.nan_to_num(0.0, 0.0, 0.0)
    rows, error = row_errors(name, got, reference)
    want, sigma = getattr(reference, name), reference.sigma[name]
    yardstick = error if eager is None else row_errors(name, eager.nan_to_num(0.0, 0.0, 0.0), reference)[1]
    got = select_rows(name, got, reference).to(want.dtype)
    if name in ("out", "dq"):
        assert reference.judged is not None
        got = torch.where(reference.judged[:, :, None, None], got, 0.0)
        count = reference.judged.sum()
    else:
        count = want.new_full((), want.shape[0] * want.shape[1])
    return {
        "nonfinite": nonfinite,
        "count": count * want.shape[2] * want.shape[3],
        "squares": (error / sigma).square().sum(-1).sum(dtype=torch.float64),
        "z_row": rows.max(),
        "worst_row": rows.argmax(),
        "max_abs": error.abs().max(),
        "yardstick": yardstick.abs().max() if eager is not None else error.new_zeros(()),
        "error_norm": error.norm(),
        "norm": want.norm(),
        "got_norm": got.norm(),
        "product": (got * want).sum(),
        **_measure_slopes(want, error, sigma, reference.rounds_alike),
    }


def _measure_slopes(want: Tensor, error: Tensor, sigma: Tensor, rounds_alike: bool) -> dict[str, Tensor]:
    """Return each head's regression slope of the result on `want`, minus 1, and its sigma; 0 if `want` is 0.

    The elements of a row share P's and D's rounding, so their errors are treated as fully correlated, and errors of
    different rows as independent: sigma is sqrt(sum over rows of (sum over d of sigma·|want|)²) / sum of want². If rows
    round alike, it is the sum over them instead. Noise in the scores also flattens the weights, which shrinks a result
    by about the square of its relative noise: that share is added.
    """
    size = _sum_by_head(want.square())
    inverse = torch.where(size > 0.0, size.reciprocal(), 0.0)
    spread = (sigma * want.abs()).sum(3)
    spread = spread.sum((0, 1)) if rounds_alike else spread.square().sum((0, 1)).sqrt()
    shrunk = _sum_by_head((sigma * (want != 0.0)).square())  # unjudged rows are 0
    return {"slope": _sum_by_head(error * want) * inverse, "slope_sigma": (spread + shrunk) * inverse}


def _sum_by_head(x: Tensor) -> Tensor:
    """Return the sums of `(batch, rows, heads, d)` over all but heads, in float64; a row is summed in its own dtype."""
    return x.sum(3).sum((0, 1), dtype=torch.float64)


def _make_score(name: str, numbers: Mapping[str, Sequence[float]], reference: Reference) -> Score:
    """Return the score of one tensor from its measurements."""
    case, (norm,), (error_norm,) = reference.case, numbers["norm"], numbers["error_norm"]
    (nonfinite,), (largest,), (z_row,) = numbers["nonfinite"], numbers["max_abs"], numbers["z_row"]
    if name == "dsinks":
        batch, row, head = 0, 0, int(numbers["worst_row"][0])
    else:
        batch, row, head = _locate_row(name, int(numbers["worst_row"][0]), reference)
    token = row if name == "dsinks" else _token_of_row(name, row, reference)
    score = Score(
        tensor=name,
        z_rms=_clamp_to_finite(math.sqrt(numbers["squares"][0] / max(1.0, numbers["count"][0]))),
        z_row=_clamp_to_finite(z_row),
        nonfinite=int(nonfinite),
        relative_error=_clamp_to_finite(error_norm / norm) if norm else 0.0,
        cosine=1.0,
        max_abs=_clamp_to_finite(largest),
        eager_ratio=0.0,
        batch=batch,
        head=head,
        token=token,
        document=-1 if name == "dsinks" else _document_of_token(case, name, batch, token),
    )
    if name not in TENSORS:
        return score
    (yardstick,), (product,), size = numbers["yardstick"], numbers["product"], numbers["got_norm"][0] * norm
    slopes, sigmas = numbers["slope"], numbers["slope_sigma"]
    worst = max(range(len(slopes)), key=lambda i: abs(slopes[i]) / slope_budget(case.dtype, sigmas[i]))
    return replace(
        score,
        cosine=product / size if size and math.isfinite(size) else 1.0,
        eager_ratio=_clamp_to_finite(largest / yardstick) if yardstick else 0.0,
        slope=1.0 + _clamp_to_finite(slopes[worst]),
        slope_sigma=_clamp_to_finite(sigmas[worst]),
        slope_head=worst,
    )


def _count_nonfinite(name: str, got: Tensor, reference: Reference) -> Tensor:
    """Return the number of NaN and infinite values in a gradient, or in the rows of out that have a key.

    A weight's gradient sums xᵀ·dq over all rows, padding included, so that one NaN there spoils it.
    """
    case = reference.case
    nonfinite = ~torch.isfinite(got)
    if name != "out":
        return nonfinite.count_nonzero()
    if case.padded:
        for s in iter_segments(case):
            nonfinite[s.batch, : s.q_start] = False
            nonfinite[s.batch, s.q_stop :] = False
    if reference.rows is None and reference.judged is not None:
        nonfinite &= reference.judged[:, :, None, None]
    return nonfinite.count_nonzero()


def _locate_row(name: str, index: int, reference: Reference) -> tuple[int, int, int]:
    """Return (batch, row, head) of a flat index: of `(batch, rows, heads)`, or of LSE's `(batch, heads, rows)`."""
    if name == "lse":
        _, heads, rows = reference.lse.shape
        return index // (heads * rows), index % rows, index // rows % heads
    _, rows, heads, _ = getattr(reference, name).shape
    return index // (heads * rows), index // heads % rows, index % heads


def _token_of_row(name: str, row: int, reference: Reference) -> int:
    if reference.rows is None or name in ("dk", "dv"):
        return row
    return int(reference.rows[row])


def _document_of_token(case: Case, name: str, batch: int, token: int) -> int:
    for s in iter_segments(case):
        start, stop = (s.q_start, s.q_stop) if name in ("out", "dq", "lse") else (s.k_start, s.k_stop)
        if s.batch == batch and start <= token < stop:
            return s.index
    return -1


def _measure_lse(got: Tensor, reference: Reference) -> dict[str, Tensor]:
    """Return the parts of LSE's score; its z_row is the largest error beyond 1e-5 of its size."""
    want = reference.lse
    got = select_rows("lse", got, reference).to(want.dtype)
    assert reference.judged is not None
    judged = torch.isfinite(want) & reference.judged[:, None, :]
    error = torch.where(judged, (got - want).abs(), 0.0).nan_to_num(0.0, 0.0, 0.0)
    excess = (error - 1e-5 * torch.where(judged, want.abs(), 0.0) - reference.lse_slack).clamp_min(0.0)
    return {
        "nonfinite": (~torch.isfinite(got) & judged).sum(),
        "count": error.new_zeros(()),
        "squares": error.new_zeros(()),
        "z_row": excess.max(),
        "worst_row": excess.argmax(),
        "max_abs": error.max(),
        "error_norm": error.norm(),
        "norm": torch.where(judged, want, 0.0).norm(),
    }


def _measure_sinks(got: Tensor, reference: Reference) -> dict[str, Tensor]:
    """Return the parts of the score of the sinks' gradient, one number per head."""
    want, sigma = reference.dsinks, reference.sigma["dsinks"]
    assert want is not None
    error = (got.nan_to_num(0.0, 0.0, 0.0).to(want.dtype) - want).float()
    z = error / sigma
    return {
        "nonfinite": (~torch.isfinite(got)).sum(),
        "count": z.new_full((), z.numel()),
        "squares": z.square().sum(dtype=torch.float64),
        "z_row": z.abs().max(),
        "worst_row": z.abs().argmax(),
        "max_abs": error.abs().max(),
        "error_norm": error.norm(),
        "norm": want.norm(),
    }


def _clamp_to_finite(value: float) -> float:
    return min(value, HUGE) if not math.isnan(value) else HUGE

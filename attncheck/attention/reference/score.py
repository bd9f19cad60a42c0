"""Scores the outputs of a backend against the reference, and finds the worst position."""

from __future__ import annotations

import math

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
    """Return one score for each tensor that was returned; `eager` holds the same-dtype yardstick's outputs."""
    tensor_scores = []
    for name in TENSORS:
        got = getattr(outputs, name)
        if got is not None:
            yardstick = getattr(eager, name) if eager is not None else None
            tensor_scores.append(_score_tensor(name, got, reference, yardstick))
    if outputs.lse is not None and judge_lse:
        tensor_scores.append(_score_lse(outputs.lse, reference))
    if outputs.dsinks is not None and reference.dsinks is not None:
        tensor_scores.append(_score_sinks(outputs.dsinks, reference))
    return tensor_scores


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
    """Return the rows of `got` that the reference sampled; those of LSE lie along its last dimension."""
    if reference.rows is None or name in ("dk", "dv"):
        return got
    return got[..., reference.rows] if name == "lse" else got[:, reference.rows]


def _score_tensor(name: str, got: Tensor, reference: Reference, eager: Tensor | None) -> Score:
    nonfinite = _count_nonfinite(name, got, reference)
    if nonfinite:
        got = got.nan_to_num(0.0, 0.0, 0.0)
    rows, error = row_errors(name, got, reference)
    want, sigma = getattr(reference, name), reference.sigma[name]
    count = _count_judged_rows(name, reference) * want.shape[-2] * want.shape[-1]
    z_rms = math.sqrt(float((error / sigma).square().sum(dtype=torch.float64)) / max(1, count))
    largest = float(error.abs().max()) if error.numel() else 0.0
    batch, row, head = _find_worst_row(rows)
    token = _token_of_row(name, row, reference)
    yardstick = 0.0
    if eager is not None and error.numel():
        yardstick = float(row_errors(name, eager.nan_to_num(0.0, 0.0, 0.0), reference)[1].abs().max())
    norm, error_norm = float(want.norm()), float(error.norm())
    slope, slope_sigma, slope_head = _find_worst_slope(reference.case, want, error, sigma)
    return Score(
        tensor=name,
        z_rms=_clamp_to_finite(z_rms),
        z_row=_clamp_to_finite(float(rows.max()) if rows.numel() else 0.0),
        nonfinite=nonfinite,
        relative_error=_clamp_to_finite(error_norm / norm) if norm else 0.0,
        cosine=_cosine_similarity(got, want, name, reference),
        max_abs=_clamp_to_finite(largest),
        eager_ratio=_clamp_to_finite(largest / yardstick) if yardstick else 0.0,
        batch=batch,
        head=head,
        token=token,
        document=_document_of_token(reference.case, name, batch, token),
        slope=slope,
        slope_sigma=slope_sigma,
        slope_head=slope_head,
    )


def _find_worst_slope(case: Case, want: Tensor, error: Tensor, sigma: Tensor) -> tuple[float, float, int]:
    """Return the regression slope of the result on `want` in the head where it is furthest from 1, its sigma, the head.

    The elements of a row share P's and D's rounding, so their errors are taken to be wholly correlated, those of
    different rows as independent: sigma is sqrt(sum over rows of (sum over d of sigma·|want|)²) / sum of want².
    """
    dims = (0, 1, 3)
    want = want.double()
    size = want.square().sum(dims)
    has_size = size > 0.0
    if not bool(has_size.any()):
        return 1.0, 0.0, 0
    size = torch.where(has_size, size, 1.0)
    offset = torch.where(has_size, (error * want).sum(dims) / size, 0.0)
    spread = (sigma * want.abs()).sum(3).square().sum((0, 1)).sqrt() / size
    allowed = [slope_budget(case.dtype, value) for value in spread.tolist()]
    head = int((offset.abs() / torch.tensor(allowed, device=offset.device)).argmax())
    return 1.0 + _clamp_to_finite(float(offset[head])), _clamp_to_finite(float(spread[head])), head


def _count_nonfinite(name: str, got: Tensor, reference: Reference) -> int:
    """Count NaN and infinity: in a gradient anywhere, in out in all rows that belong to a sequence and see a key.

    A weight's gradient sums xᵀ·dq over all rows, padding included, so that one NaN there spoils it.
    """
    case = reference.case
    nonfinite = ~torch.isfinite(got)
    if name != "out":
        return int(nonfinite.sum())
    if case.padded:
        for s in iter_segments(case):
            nonfinite[s.batch, : s.q_start] = False
            nonfinite[s.batch, s.q_stop :] = False
    if reference.rows is None and reference.judged is not None:
        nonfinite &= reference.judged[:, :, None, None]
    return int(nonfinite.sum())


def _count_judged_rows(name: str, reference: Reference) -> int:
    if name in ("out", "dq"):
        assert reference.judged is not None
        return int(reference.judged.sum())
    return int(reference.dk.shape[0] * reference.dk.shape[1])


def _find_worst_row(rows: Tensor) -> tuple[int, int, int]:
    """Return (batch, row, head) of the worst row."""
    if not rows.numel():
        return 0, 0, 0
    index = int(rows.argmax())
    heads, tokens = rows.shape[2], rows.shape[1]
    return index // (heads * tokens), index // heads % tokens, index % heads


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


def _cosine_similarity(got: Tensor, want: Tensor, name: str, reference: Reference) -> float:
    got = select_rows(name, got, reference).to(want.dtype)
    if name in ("out", "dq") and reference.judged is not None:
        got = torch.where(reference.judged[:, :, None, None], got, 0.0)
    scale = float(got.norm() * want.norm())
    return float((got * want).sum()) / scale if scale and math.isfinite(scale) else 1.0


def _score_lse(got: Tensor, reference: Reference) -> Score:
    want = reference.lse
    got = select_rows("lse", got, reference).to(want.dtype)
    assert reference.judged is not None
    judged = torch.isfinite(want) & reference.judged[:, None, :]
    nonfinite = int((~torch.isfinite(got) & judged).sum())
    error = torch.where(judged, (got - want).abs(), 0.0).nan_to_num(0.0, 0.0, 0.0)
    excess = (error - 1e-5 * torch.where(judged, want.abs(), 0.0) - reference.lse_slack).clamp_min(0.0)
    batch, row, head = _find_worst_row(excess.transpose(1, 2))
    token = _token_of_row("lse", row, reference)
    norm = float(torch.where(judged, want, 0.0).norm())
    largest = float(excess.max()) if excess.numel() else 0.0
    return Score(
        tensor="lse",
        z_rms=0.0,
        z_row=_clamp_to_finite(largest),
        nonfinite=nonfinite,
        relative_error=_clamp_to_finite(float(error.norm()) / norm) if norm else 0.0,
        cosine=1.0,
        max_abs=_clamp_to_finite(float(error.max()) if error.numel() else 0.0),
        eager_ratio=0.0,
        batch=batch,
        head=head,
        token=token,
        document=_document_of_token(reference.case, "lse", batch, token),
    )


def _score_sinks(got: Tensor, reference: Reference) -> Score:
    """Score the sinks' gradient, one number a head."""
    want, sigma = reference.dsinks, reference.sigma["dsinks"]
    assert want is not None
    nonfinite = int((~torch.isfinite(got)).sum())
    error = (got.nan_to_num(0.0, 0.0, 0.0).to(want.dtype) - want).float()
    z = error / sigma
    head = int(z.abs().argmax())
    return Score(
        tensor="dsinks",
        z_rms=_clamp_to_finite(float(z.square().mean().sqrt())),
        z_row=_clamp_to_finite(float(z.abs().max())),
        nonfinite=nonfinite,
        relative_error=_clamp_to_finite(float(error.norm()) / max(float(want.norm()), 1e-30)),
        cosine=1.0,
        max_abs=_clamp_to_finite(float(error.abs().max())),
        eager_ratio=0.0,
        batch=0,
        head=head,
        token=0,
        document=-1,
    )


def _clamp_to_finite(value: float) -> float:
    return min(value, HUGE) if not math.isnan(value) else HUGE

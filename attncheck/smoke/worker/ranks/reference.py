"""Runs the ranks' documents in one process, and measures the ranks' difference from it.

The reference runs one document at a time, in float32 with eager attention. A second run in the plan's precision gives
the rounding error of each number. Neither uses the plan's implementation, which runs across ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from attncheck.core.results.smoke import Measure
from attncheck.smoke.worker.ranks.loss_shares import clamp_error, token_losses
from attncheck.smoke.worker.ranks.sharded import PackedRow, ShardedStep
from attncheck.smoke.worker.testbed import (
    FP32_LIMIT,
    ROUNDING_MULTIPLE,
    TINY,
    ModelRun,
    Testbed,
    gradient_error,
    gradient_norm,
    relative_error,
)

NORM_LIMIT = 0.01  # allowed deviation of the ratio of gradient norms from 1 (numerics §5)
MIN_NORM_SHARE = 0.01  # share of the norm of all gradients: a parameter's smaller gradient is measured in units of this


@dataclass(frozen=True)
class SingleProcessRun:
    """One process's runs of the documents, row after row: in float32, and in the plan's precision."""

    exact: ModelRun
    rounded: ModelRun
    rounding_multiple: float  # allowed multiple of the rounding error; 0: float32, which has FP32_LIMIT

    def error_limit(self, rounding_error: float) -> float:
        """Return the largest allowed error of a number with this rounding error."""
        return self.rounding_multiple * rounding_error if self.rounding_multiple else FP32_LIMIT

    def logits_limit(self) -> tuple[float, float]:
        """Return the rounding error of all logits, and the limit for the ranks."""
        rounding_error = relative_error(self.rounded.logits, self.exact.logits)
        return rounding_error, self.error_limit(rounding_error)


def run_single_process(testbed: Testbed, rows: Sequence[Sequence[Tensor]]) -> SingleProcessRun:
    """Run the documents in one process, in float32 and in the plan's precision."""
    documents = [document for row in rows for document in row]
    plan = replace(testbed.plan, precision="fp32")
    exact = testbed.run_unpacked(testbed.build_model(plan, "eager"), documents, plan)
    rounded = testbed.run_unpacked(testbed.build_model(implementation="eager"), documents)
    return SingleProcessRun(exact, rounded, 0.0 if testbed.plan.precision == "fp32" else ROUNDING_MULTIPLE)


def measure_step(step: ShardedStep, rows: Sequence[PackedRow], single: SingleProcessRun) -> Iterator[Measure]:
    """Yield the errors of all logits, of the loss and of gradients across ranks, compared with one process."""
    exact, rounded = single.exact, single.rounded
    document_logits = [
        logits[start:stop] for logits, row in zip(step.driver_logits, rows) for start, stop in pairwise(row.cu_seqlens)
    ]
    yield Measure("logits", relative_error(document_logits, exact.logits), single.logits_limit()[1])
    yield _measure_worst_document(document_logits, rows, single, len(step.rank_weights))
    rounding_error = _log_prob_error(single, rows) / exact.loss
    yield Measure("loss", clamp_error(abs(step.loss / exact.loss - 1)), single.error_limit(rounding_error))
    total_norm = gradient_norm(exact.gradients)
    yield Measure(
        "gradient norm", clamp_error(abs(gradient_norm(step.gradients) / max(total_norm, TINY) - 1)), NORM_LIMIT
    )
    rounding_error = gradient_error(rounded.gradients, exact.gradients)
    yield Measure("gradients", gradient_error(step.gradients, exact.gradients), single.error_limit(rounding_error))
    yield _measure_worst_parameter(step, single, total_norm, rounding_error)


def _measure_worst_document(
    document_logits: Sequence[Tensor], rows: Sequence[PackedRow], single: SingleProcessRun, ranks: int
) -> Measure:
    """Return the error of the document whose logits exceed their rounding error most."""
    measures = []
    for index, expected in enumerate(single.exact.logits):
        rounding_error = relative_error([single.rounded.logits[index]], [expected])
        limit = single.error_limit(max(rounding_error, single.logits_limit()[0]))
        error = relative_error([document_logits[index]], [expected])
        measures.append(Measure("one document's logits", error, limit, _describe_document(index, rows, ranks)))
    return max(measures, key=lambda measure: measure.budget_ratio)


def _describe_document(index: int, rows: Sequence[PackedRow], ranks: int) -> str:
    """Return the document at an index over all rows, in words, and the ranks that hold it."""
    row_number = 0
    while index >= len(rows[row_number].cu_seqlens) - 1:
        index -= len(rows[row_number].cu_seqlens) - 1
        row_number += 1
    cu_seqlens = rows[row_number].cu_seqlens
    shard_tokens = -(-rows[row_number].total_tokens // ranks)
    first, last = cu_seqlens[index] // shard_tokens, (cu_seqlens[index + 1] - 1) // shard_tokens
    holders = f"rank {first}" if first == last else f"ranks {first} to {last}"
    return f"document {index + 1} of row {row_number + 1}, on {holders}"


def _measure_worst_parameter(
    step: ShardedStep, single: SingleProcessRun, total_norm: float, rounding_error: float
) -> Measure:
    """Return the error of the parameter whose gradient exceeds its rounding error most."""
    measures = []
    for name, expected in single.exact.gradients.items():
        scale = max(float(expected.norm()), MIN_NORM_SHARE * total_norm, TINY)
        actual = step.gradients.get(name, torch.zeros_like(expected))
        own_rounding_error = float((single.rounded.gradients.get(name, expected) - expected).norm()) / scale
        error = clamp_error(float((actual - expected).norm()) / scale)
        measures.append(
            Measure(
                "one parameter's gradient",
                error,
                single.error_limit(max(own_rounding_error, rounding_error)),
                f"in {name}",
            )
        )
    return max(measures, key=lambda measure: measure.budget_ratio)


def _log_prob_error(single: SingleProcessRun, rows: Sequence[PackedRow]) -> float:
    """Return the rms rounding error of a token's log-probability, which is larger than that of their mean."""
    targets = torch.cat([row.targets for row in rows])
    rounded, exact = (token_losses(torch.cat(run.logits), targets) for run in (single.rounded, single.exact))
    return float((rounded - exact)[targets >= 0].square().mean().sqrt())

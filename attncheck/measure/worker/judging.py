"""The exact results that a backend's outputs are compared with, and their scores: for parity and for determinism."""

from dataclasses import replace

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.oracle import Reference, compute_reference
from attncheck.attention.reference.score import score_outputs
from attncheck.core.verdicts import Mode, Score


def reference_for(backend: Backend, device: Device, inputs: Inputs) -> Reference:
    """Return the exact results of `inputs` with the rounding noise of a kernel of the backend's class."""
    roundings = backend.roundings(inputs.case, device)
    return compute_reference(inputs, backend.noise, backend.rounded_bias, roundings)


def score_backend(
    backend: Backend, outputs: Outputs, reference: Reference, eager: Outputs | None = None, mode: Mode = "default"
) -> tuple[Score, ...]:
    """Return one score for each tensor; `eager` holds the same-dtype yardstick's outputs.

    LSE is not judged if the backend's class rounds the scores themselves to 16 bits.
    """
    judge_lse = backend.noise == "fused" or reference.case.dtype == "float32"
    scores = score_outputs(outputs, reference, eager, judge_lse)
    return tuple(scores) if mode == "default" else tuple(replace(score, mode=mode) for score in scores)

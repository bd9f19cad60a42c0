"""The exact results that a backend's outputs are compared with, and the scores for parity and determinism."""

from dataclasses import replace

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.backends.eager import BACKEND as EAGER
from attncheck.attention.inputs import Inputs
from attncheck.attention.reference.oracle import (
    Reference,
    add_sum_roundings,
    compute_reference,
    compute_unrounded_reference,
)
from attncheck.attention.reference.rounding_noise import Noise
from attncheck.attention.reference.score import score_outputs
from attncheck.core.cases import Case
from attncheck.core.verdicts import Mode, Score


class SharedResults:
    """Results that backends on the same case share, so that they are computed once."""

    def __init__(self) -> None:
        self._case: Case | None = None
        self._references: dict[tuple[str, bool], Reference] = {}
        self._eager: Outputs | None = None

    def unrounded_reference(self, inputs: Inputs, noise: Noise, rounded_bias: bool) -> Reference:
        """Return the exact results, with one class's noise from before its sums' own rounding."""
        self._begin(inputs.case)
        has_bias = inputs.case.alibi or inputs.case.mask == "additive"
        key = noise, rounded_bias and has_bias
        if key not in self._references:
            self._references[key] = compute_unrounded_reference(inputs, noise, rounded_bias)
        sigma = {name: variance.clone() for name, variance in self._references[key].sigma.items()}
        return replace(self._references[key], sigma=sigma)

    def eager_outputs(self, inputs: Inputs) -> Outputs:
        """Return the outputs of eager, the usual yardstick."""
        self._begin(inputs.case)
        self._eager = self._eager or EAGER.run(inputs, False)
        return self._eager

    def _begin(self, case: Case) -> None:
        if case != self._case:
            self._case, self._references, self._eager = case, {}, None


def reference_for(backend: Backend, device: Device, inputs: Inputs, shared: SharedResults | None = None) -> Reference:
    """Return the exact results of `inputs` with the rounding noise of a kernel of the backend's class."""
    roundings = backend.roundings(inputs.case, device)
    if shared is None:
        return compute_reference(inputs, backend.noise, backend.rounded_bias, roundings)
    unrounded = shared.unrounded_reference(inputs, backend.noise, backend.rounded_bias)
    return add_sum_roundings(unrounded, inputs.device, roundings)


def score_backend(
    backend: Backend, outputs: Outputs, reference: Reference, eager: Outputs | None = None, mode: Mode = "default"
) -> tuple[Score, ...]:
    """Return one score for each tensor; `eager` holds the same-dtype yardstick's outputs.

    LSE is not judged if the backend's class rounds the scores themselves to 16 bits.
    """
    judge_lse = backend.noise == "fused" or reference.case.dtype == "float32"
    scores = score_outputs(outputs, reference, eager, judge_lse)
    return tuple(scores) if mode == "default" else tuple(replace(score, mode=mode) for score in scores)

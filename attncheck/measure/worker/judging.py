"""The exact results that a backend's outputs are compared with, and the scores for parity and determinism."""

from dataclasses import replace

from attncheck.attention.backend import Backend, Device, Outputs
from attncheck.attention.backends.eager import BACKEND as EAGER
from attncheck.attention.inputs import Inputs, make_inputs
from attncheck.attention.masks import MAX_KEPT_SCORES
from attncheck.attention.reference.oracle import (
    ExactChunks,
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
        self._inputs: dict[Case, Inputs] = {}
        self._references: dict[tuple[str, bool], Reference] = {}
        self._chunks: ExactChunks = {}
        self._eager: Outputs | None = None

    def begin(self, case: Case) -> None:
        """Forget everything that belongs to other cases."""
        if case != self._case:
            self.forget()
            self._case = case

    def forget(self) -> None:
        """Forget everything, because a backend wrote to the inputs."""
        self._case, self._inputs, self._references, self._chunks, self._eager = None, {}, {}, {}, None

    def inputs_of(self, case: Case, device: str) -> Inputs:
        """Return the inputs of a case, or of one that is run alongside it."""
        if case not in self._inputs:
            self._inputs[case] = make_inputs(case, device)
        return self._inputs[case]

    def unrounded_reference(self, inputs: Inputs, noise: Noise, rounded_bias: bool) -> Reference:
        """Return the exact results, with the noise of one class before its sums' own rounding."""
        has_bias = inputs.case.alibi or inputs.case.mask == "additive"
        key = noise, rounded_bias and has_bias
        if key not in self._references:
            keeps_chunks = inputs.device == "cpu" and inputs.case.scores < MAX_KEPT_SCORES
            self._references[key] = compute_unrounded_reference(
                inputs, noise, rounded_bias, self._chunks if keeps_chunks else None
            )
        sigma = {name: variance.clone() for name, variance in self._references[key].sigma.items()}
        return replace(self._references[key], sigma=sigma)

    def eager_outputs(self, inputs: Inputs) -> Outputs:
        """Return the outputs of eager, the familiar yardstick."""
        if self._eager is None:
            self.keep_eager(EAGER.run(inputs, False))
        assert self._eager is not None
        return self._eager

    def keep_eager(self, outputs: Outputs) -> None:
        """Keep what eager returned, so that it need not run again."""
        self._eager = outputs


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

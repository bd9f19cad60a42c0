"""The parts of a hypothesis: a changed model, and a transform of its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attncheck.agree.worker import scoring
from attncheck.agree.worker.models import Sample, load_model
from attncheck.core.agreement import Overrides, Rollout, Scoring
from attncheck.core.results.agree import Side
from attncheck.smoke.worker.testbed import DTYPES


@dataclass(frozen=True)
class Variant:
    """A model's logits under one hypothesis: one tensor (tokens, vocabulary) for each sample."""

    name: str
    text: str
    remedy: str
    compute: Callable[[], list[Tensor]]
    sides: tuple[Side, ...] = ("engine", "trainer")
    named_share: float = 0.99  # share of the squared difference that an incomplete explanation must explain


@dataclass(frozen=True)
class Transform:
    """A transform of logits into log p of a sample's tokens."""

    name: str
    text: str
    remedy: str
    apply: Callable[[Tensor, Sample], Tensor]
    sides: tuple[Side, ...] = ("engine", "trainer")


@dataclass
class Context:
    """The inputs of hypotheses: the exact model, the samples, and both sides' settings."""

    folder: str
    engine_folder: str
    samples: Sequence[Sample]
    rollout: Rollout
    plan: Scoring
    model: Any
    device: str
    exact: list[Tensor]  # logits
    progress: Callable[[str], None]
    computed: dict[str, list[Tensor]] = field(default_factory=dict)

    def score(
        self,
        change: Callable[[Any], Any] | None = None,
        samples: Sequence[Sample] = (),
    ) -> list[Tensor]:
        """Return each sample's logits, computed separately, with a changed model or other tokens.

        `change` changes weights, and returns the handles of the hooks that it registers, if any.
        """
        samples = samples or self.samples
        if change is None:
            return [own.logits for own in scoring.score_each(self.model, samples)]
        kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        handles: Sequence[Any] = ()
        try:
            with torch.no_grad():
                handles = change(self.model) or ()
            return [own.logits for own in scoring.score_each(self.model, samples)]
        finally:
            for handle in handles:
                handle.remove()
            self.model.load_state_dict(kept)

    def score_other(self, overrides: Overrides = (), folder: str = "", dropped: bool = False) -> list[Tensor]:
        """Return the logits with another configuration or folder; `dropped`: without the trainer's own overrides."""
        own = () if dropped else self.plan.overrides
        dtype = next(self.model.parameters()).dtype
        model = load_model(folder or self.folder, dtype, "eager", (*own, *overrides), self.device)
        return [scored.logits for scored in scoring.score_each(model, self.samples)]

    def score_cached(self, make_cache: Callable[[], Any]) -> list[Tensor]:
        """Return the logits through a cache in the engine's precision, so that the cache's rounding is included."""
        precision = self.rollout.precision
        model = load_model(self.folder, DTYPES[precision], "eager", self.plan.overrides, self.device)
        scored = scoring.score_each(model, self.samples, Scoring(precision), make_cache=make_cache)
        return [own.logits.to(self.exact[0].dtype) for own in scored]

    def score_batches(self, make: Callable[[Sequence[Sample]], scoring.Batch]) -> list[Tensor]:
        """Return the logits of batches that are made differently from the trainer's."""
        plan = Scoring("fp32", batch=self.plan.batch)
        return [scored.logits for scored in scoring.score(self.model, self.samples, plan, make=make)]

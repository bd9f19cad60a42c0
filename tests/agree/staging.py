"""Compares a small model's engine and trainer in this process, with what a test plants on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncheck.agree.worker import engines, judging, models
from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.results.agree import AgreedModel

Generate = Callable[[engines.Generated], engines.Generated]


def make_model(folder: Path, name: str, seed: int = 0) -> Path:
    """Return the folder of a small model."""
    folder.mkdir(parents=True, exist_ok=True)
    models.prepare_small(name, folder / "model", seed)
    return folder / "model"


def compare(
    model: Path,
    rollout: Rollout,
    scoring: Scoring,
    engine_model: Path | None = None,
    change_engine: Callable[[Any], None] | None = None,
    change_prompts: Callable[[list[int]], list[int]] | None = None,
    change_output: Callable[[models.Sample], models.Sample] | None = None,
) -> AgreedModel:
    """Return the comparison; the changes are of the engine's weights, the prompts that it gets, what it returns."""
    prompts = models.make_prompts(model, True, 0)
    engine = engines.TransformersEngine(str(engine_model or model), rollout, "cpu")
    if change_engine is not None:
        change_engine(engine.model)
    given = [change_prompts(prompt) for prompt in prompts] if change_prompts else prompts
    generated = engine.generate(given)
    samples = [
        models.Sample(tuple(prompt), sample.response, sample.log_probabilities)
        for prompt, sample in zip(prompts, generated.samples, strict=True)
    ]
    if change_output is not None:
        samples = [change_output(sample) for sample in samples]
    generated = engines.Generated(
        tuple(samples), generated.version, generated.logits, generated.hidden, generated.first, generated.again
    )
    other = str(engine_model or "")
    return judging.judge(str(model), other, generated, rollout, scoring, "cpu", lambda text: None)

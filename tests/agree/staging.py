"""Compares a small model's engine and trainer in this process, with what a test plants on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.agree.worker import engines, judging, models
from attncheck.core.agreement import Rollout, Scoring
from attncheck.core.results.agree import AgreedModel
from attncheck.rehearsal.worker.records import RolloutRecord

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
    score: Callable[[models.Sample], Iterable[float]] | None = None,
    write: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda response: response,
    make_engine: Callable[[str, Rollout, str], Any] = engines.TransformersEngine,
) -> AgreedModel:
    """Return the comparison; the changes are of the engine's weights, the prompts that it gets, what it returns.

    `score` is the trainer's own code, if there is any, and `write` the response that it scores.
    """
    prompts = models.make_prompts(model, True, 0)
    engine = make_engine(str(engine_model or model), rollout, "cpu")
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
    generated = replace(generated, samples=tuple(samples))
    other = str(engine_model or "")
    own = {}
    if score is not None:
        for number, sample in enumerate(samples):
            values = tuple(score(sample))
            own[number] = RolloutRecord(number, 0.0, values, sample.prompt, write(sample.response))
    return judging.judge(str(model), other, generated, own, rollout, scoring, "cpu", lambda text: None)


def names(result: AgreedModel) -> list[tuple[str, str]]:
    """Return the side and the name of each cause."""
    return [(cause.side, cause.name) for cause in result.causes]

"""Cases for ATN459."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import Experiments, GradientMeasurement
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_gradients(snapshot: Snapshot, *divisions: tuple[str, float, float], trainer: str = "transformers") -> Snapshot:
    measured = (GradientMeasurement(trainer, name, ratio, cosine, ratio) for name, ratio, cosine in divisions)
    return replace(snapshot, experiments=s.Known(Experiments(tuple(measured))))


RIGHT = ("one batch", 1.0, 1.0)
FIRES = {
    "two micro-batches halve the gradient": with_gradients(s.h200(), RIGHT, ("two micro-batches", 0.5, 1.0)),
    "replicas train the rows of the first alone": with_gradients(s.h200(), RIGHT, ("two replicas", 0.46, 0.46)),
    "the same norm in another direction": with_gradients(s.h200(), RIGHT, ("two micro-batches", 1.0, 0.9)),
    "ms-swift's trainer alone": with_gradients(s.h200(), RIGHT, ("two micro-batches", 2.0, 1.0), trainer="ms-swift"),
    "TRL's trainer alone": with_gradients(s.h200(), RIGHT, ("two micro-batches", 2.0, 1.0), trainer="trl"),
}
SILENT = {
    "nothing was measured": s.h200(),
    "all alike": with_gradients(s.h200(), RIGHT, ("two micro-batches", 1.0, 1.0), ("two replicas", 1.0, 1.0)),
    "another count of tokens, for all divisions": with_gradients(
        s.h200(), ("one batch", 1.1, 1.0), ("two micro-batches", 1.1, 1.0)
    ),
    "the division was not measured": replace(
        s.h200(),
        experiments=s.Known(
            Experiments(
                (GradientMeasurement("trl", *RIGHT), GradientMeasurement("trl", "two replicas", error="KeyError"))
            )
        ),
    ),
    "ATN457 reports it": with_gradients(
        s.with_package(s.h200(), "transformers", "5.5.0", faults={"ATN457": True}),
        RIGHT,
        ("two micro-batches", 0.5, 1.0),
    ),
    "the launch accumulates nothing": s.with_job(
        with_gradients(s.h200(), RIGHT, ("two micro-batches", 0.5, 1.0)), {"accumulation": 1}
    ),
}

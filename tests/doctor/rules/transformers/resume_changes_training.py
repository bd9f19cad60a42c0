"""Cases for ATN465."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import Experiments, ResumeMeasurement
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_resumes(*resumes: ResumeMeasurement) -> Snapshot:
    return replace(s.h200(), experiments=s.Known(Experiments(resumes=resumes)))


WRONG = with_resumes(ResumeMeasurement("transformers", 0.0, 0.35), ResumeMeasurement("trl", 0.0, 0.35))
SWIFT = with_resumes(ResumeMeasurement("transformers"), ResumeMeasurement("ms-swift", 0.5, 0.1))


def with_setting(snapshot: Snapshot, value: str, epochs: str = "3") -> Snapshot:
    values = {"--resume_from_checkpoint": value, "--num_train_epochs": epochs}
    settings = [Setting(name, text, SourceLocation("run.sh", 3, 1), (0, 1)) for name, text in values.items()]
    return s.with_job(snapshot, framework="trl", settings=tuple(settings))


FIRES = {
    "the order of another epoch": WRONG,
    "ms-swift's data loader alone": SWIFT,
    "the optimiser's state is lost": with_resumes(ResumeMeasurement("trl", 1.0, 0.1)),
    "a launch that resumes": with_setting(WRONG, "out/checkpoint-8"),
}
SILENT = {
    "nothing was measured": s.h200(),
    "measured right": with_resumes(ResumeMeasurement("transformers", 1.0, 1e-6)),
    "could not be measured": with_resumes(ResumeMeasurement("trl", 0.0, 1.0, error="TypeError")),
    "a launch that starts without a checkpoint": s.with_job(WRONG, framework="trl"),
    "a launch that turns resuming off": with_setting(WRONG, "null"),
    "a launch of one epoch": with_setting(WRONG, "true", "1"),
    "a launch of another framework": with_setting(SWIFT, "true"),
}


def says(findings: str) -> bool:
    """Return whether the trainer at fault, and a release that is right, are named."""
    return ("resumes inside the second epoch" in findings) and (
        "transformers>=5.5.4" in findings or "ms-swift>=4.5.3" in findings
    )

"""Cases for ATN160."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_verl(transformers: str) -> Snapshot:
    """Return verl with this transformers."""
    snapshot = s.with_package(s.without_packages(s.h200(), "liger-kernel"), "transformers", transformers)
    return s.with_package(snapshot, "verl", "0.5.0", requires=("transformers",))


FIRES = {
    "4.53.0, no model named": with_verl("4.53.0"),
    "4.53.3 and Qwen2.5-VL": s.with_model(with_verl("4.53.3"), model_type="qwen2_5_vl"),
}
FIRES |= {"a launch of Qwen2.5-VL that is not here": s.with_job(with_verl("4.53.2"), {}, model="Qwen/Qwen2.5-VL-7B")}
SILENT = {
    "a launch of a text model that is not here": s.with_job(with_verl("4.53.2"), {}, model="Qwen/Qwen3-8B-Base"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "4.52.4": with_verl("4.52.4"),
    "4.54.0": with_verl("4.54.0"),
    "another model": s.with_model(with_verl("4.53.3"), model_type="qwen2"),
    "no verl": s.without_packages(with_verl("4.53.3"), "verl"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the range to go to."""
    return "transformers>=4.54" in finding

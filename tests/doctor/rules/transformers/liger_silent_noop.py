"""Cases for ATN151."""

from tests import snapshots as s

MISSING_TARGETS = s.Known(("transformers.models.mistral.modeling_mistral:CrossEntropyLoss",))
WITH_MISSING_TARGETS = s.with_interfaces(s.h200(), liger_missing_targets=MISSING_TARGETS)

FIRES = {"mistral's loss class no longer exists": s.with_model(WITH_MISSING_TARGETS, model_type="mistral")}
SILENT = {
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "another model": s.with_model(WITH_MISSING_TARGETS, model_type="qwen2"),
    "a model whose name begins alike": s.with_model(WITH_MISSING_TARGETS, model_type="mistral3"),
    "no model was named": WITH_MISSING_TARGETS,
    "all targets are there": s.with_model(
        s.with_interfaces(s.h200(), liger_missing_targets=s.Known(())), model_type="mistral"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the lost patch and the setting."""
    return "CrossEntropyLoss" in finding and "fused_linear_cross_entropy=True" in finding

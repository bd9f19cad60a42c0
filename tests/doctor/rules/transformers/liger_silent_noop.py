"""Cases for ATN151."""

from tests import snapshots as s

GONE = s.Known(("transformers.models.mistral.modeling_mistral:CrossEntropyLoss",))
HALF = s.interfaces(s.h200(), liger_missing_targets=GONE)

FIRES = {"mistral's loss class is gone": s.model(HALF, model_type="mistral")}
SILENT = {
    "the recorded machine": s.h200(),
    "no liger-kernel": s.laptop(),
    "another model": s.model(HALF, model_type="qwen2"),
    "a model whose name begins alike": s.model(HALF, model_type="mistral3"),
    "no model was asked about": HALF,
    "all targets are there": s.model(s.interfaces(s.h200(), liger_missing_targets=s.Known(())), model_type="mistral"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the lost patch and the setting."""
    return "CrossEntropyLoss" in finding and "fused_linear_cross_entropy=True" in finding

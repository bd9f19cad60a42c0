"""The kernels of recurrent layers: which ones a model's layers need, and how to install the missing ones."""

from attncheck.core.findings import Fix
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.models import FLA_REQUIRES_TRANSFORMERS, GATED_DELTA_RULE, MAMBA_MODELS
from attncheck.doctor.queries.models import is_older

FLA, CONVOLUTION, MAMBA = "flash-linear-attention", "causal-conv1d", "mamba-ssm"


def find_missing_kernels(snapshot: Snapshot, model: Model) -> list[str]:
    """Return the distributions with kernels for the model's recurrent layers that are not installed."""
    family = model.model_type.removesuffix("_text")
    wanted: tuple[str, ...] = ()
    if family in GATED_DELTA_RULE and "linear_attention" in model.layer_types:
        wanted = (FLA, CONVOLUTION)
    elif family in MAMBA_MODELS:
        wanted = (MAMBA, CONVOLUTION)
    return [name for name in wanted if not snapshot.has(name)]


def install_kernels(snapshot: Snapshot, missing: list[str]) -> Fix:
    """Return the command that installs the missing kernels and does not change transformers."""
    newest, since = FLA_REQUIRES_TRANSFORMERS
    old_transformers = is_older(snapshot.version("transformers"), since)
    requirements = [f"{name}<{newest}" if name == FLA and old_transformers else name for name in missing]
    compiled = CONVOLUTION in missing or MAMBA in missing
    title = f"install {' and '.join(missing)}"
    return install_packages(
        snapshot,
        *requirements,
        options=("--no-build-isolation",) if compiled else (),
        title=title + (" (compiled here: needs nvcc; not tried)" if compiled else " (not tried)"),
    )

"""Shared by all frameworks' plan writers: version checks, environment variables, remarks on missing settings."""

import shlex
from collections.abc import Callable, Iterator, Mapping

from packaging.version import InvalidVersion, Version

from attncheck.core.lists import list_applying
from attncheck.core.plan import NO_CUDNN_SDPA, RING_NAMES, Plan
from attncheck.doctor.knowledge import ring_flash_attn

VersionCheck = Callable[[str], bool]  # whether the framework's version is this one or newer
# Variables that flash-attn (transformers, integrations/flash_attention.py) and cuBLAS read.
DETERMINISTIC_ENVIRON = (("FLASH_ATTENTION_DETERMINISTIC", "1"), ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"))
NO_CUDNN_SCRIPT = "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)"
SHIM_SCRIPTS: Mapping[str, str] = {RING_NAMES: ring_flash_attn.SHIM_CODE, NO_CUDNN_SDPA: NO_CUDNN_SCRIPT}
MULTIMODAL_SHAPES = {"reset_3d": "(3, batch, seqlen)", "reset_4d": "(4, batch, seqlen)"}  # shapes of position_ids
WEIGHT_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "autocast": "float32"}  # dtypes of weights


def make_version_check(version: str) -> VersionCheck:
    """Return a function that tests whether `version` is at least a given one; an unknown version is the newest."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return lambda boundary: True
    return lambda boundary: parsed >= Version(boundary)


def collect_environ(plan: Plan) -> dict[str, str]:
    """Return the job's environment variables: the plan's own, and those for determinism."""
    return {**dict(DETERMINISTIC_ENVIRON if plan.deterministic else ()), **dict(plan.environ)}


def format_exports(plan: Plan, prefix: str = "") -> list[str]:
    """Return shell lines that set the job's environment; `prefix` makes them comments in another file."""
    return [f"{prefix}export {name}={shlex.quote(value)}" for name, value in collect_environ(plan).items()]


def format_bool(value: bool) -> str:
    """Return a bool in the notation of YAML and command lines."""
    return "true" if value else "false"


def format_trainer_fields(plan: Plan, liger: str) -> dict[str, str]:
    """Return a plan's settings of transformers' Trainer by name; `liger` is the name of liger's switch."""
    switches = {"torch_compile": plan.compile, "full_determinism": plan.deterministic}
    return {
        "per_device_train_batch_size": str(plan.batch),
        "gradient_accumulation_steps": str(plan.accumulation),
        "gradient_checkpointing": format_bool(plan.gradient_checkpointing),
        liger: format_bool(plan.liger),
        **{name: "true" for name, is_on in switches.items() if is_on},
    }


def unsupported_remarks(plan: Plan, *supported: str) -> Iterator[str]:
    """Yield a comment for each part of the plan that a framework has no setting for; `supported` names the others."""
    shape = MULTIMODAL_SHAPES.get(plan.positions, "")
    is_multimodal = plan.packed and shape
    remarks = {
        "# positions that continue across documents: no setting; they restart in each document": (
            plan.packed and plan.positions == "running" and "positions" not in supported
        ),
        f"# position_ids of shape {shape}, each restarting in each document: no setting,": is_multimodal,
        "# the collator must stack them": is_multimodal,
        "# use_cache=True: no setting; it is off in training": plan.use_cache and "use_cache" not in supported,
        "# torch.compile of the model: no setting": plan.compile and "compile" not in supported,
        f"# the cross-entropy {plan.cross_entropy!r}: no setting": (
            plan.cross_entropy != "torch" and "cross_entropy" not in supported
        ),
        "# padding on the left: no setting; it pads on the right": (
            not plan.packed and plan.padding_side == "left" and "padding_side" not in supported
        ),
        f"# {plan.scheme} over {plan.ring_size} ranks: no setting": (
            plan.ring_size > 1 and plan.scheme not in supported
        ),
    }
    yield from list_applying(remarks)
    for name in plan.shims:
        is_written = name in supported or (name != NO_CUDNN_SDPA and "shims" in supported)
        if not is_written and (name == NO_CUDNN_SDPA or plan.ring_size == 1 or plan.scheme in supported):
            text = SHIM_SCRIPTS.get(name, f"the repair {name!r}")
            yield "# into the training script (no setting does this):"
            yield from (f"#   {line}" for line in text.splitlines())


def packing_remarks(plan: Plan, *packings: str, explanation: str) -> Iterator[str]:
    """Yield a comment if a packed plan separates documents in another way than the framework does."""
    if plan.packed and plan.packing not in packings:
        yield f"# packing by {plan.packing}: no setting; {explanation}"

"""What the writers of settings share: comparing versions, environment variables, what cannot be expressed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from packaging.version import InvalidVersion, Version

from attncheck.core.plan import RING_NAMES, Plan
from attncheck.doctor.knowledge import ring_flash_attn

Since = Callable[[str], bool]  # whether the framework's version is this one or newer
# What flash-attn (transformers, integrations/flash_attention.py) and cuBLAS read.
DETERMINISTIC = (("FLASH_ATTENTION_DETERMINISTIC", "1"), ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"))
SHIMS: Mapping[str, str] = {RING_NAMES: ring_flash_attn.SHIM}
SHAPES = {"reset_3d": "(3, batch, seqlen)", "reset_4d": "(4, batch, seqlen)"}  # of multimodal positions
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "autocast": "float32"}  # of the weights


def since(version: str) -> Since:
    """Return a function that says whether `version` is a given one or newer; an unknown version is the newest."""
    try:
        found = Version(version)
    except InvalidVersion:
        return lambda wanted: True
    return lambda wanted: found >= Version(wanted)


def variables(plan: Plan) -> dict[str, str]:
    """Return the environment of the job: the plan's own variables, and what determinism needs."""
    return {**dict(DETERMINISTIC if plan.deterministic else ()), **dict(plan.environ)}


def exports(plan: Plan, before: str = "") -> list[str]:
    """Return the lines of a shell that set the job's environment; `before` makes them comments of another file."""
    return [f"{before}export {name}={shlex.quote(value)}" for name, value in variables(plan).items()]


def switch(name: str, on: bool) -> list[str]:
    """Return a flag that stands for yes, or nothing."""
    return [name] if on else []


def word(value: bool) -> str:
    """Return a truth value as YAML and command lines write it."""
    return "true" if value else "false"


def remarks(plan: Plan, *able: str) -> Iterator[str]:
    """Yield a comment for each thing of the plan that a framework does not express; `able` names what it does."""
    if plan.packed and plan.positions == "running" and "positions" not in able:
        yield "# positions that run over a whole row: no setting; each document's begin anew"
    if plan.packed and plan.positions in SHAPES:
        yield f"# position_ids of shape {SHAPES[plan.positions]}, each beginning anew in each document: no setting,"
        yield "# the collator must stack them"
    if plan.use_cache and "use_cache" not in able:
        yield "# use_cache=True: no setting; it is off in training"
    if plan.compile and "compile" not in able:
        yield "# torch.compile of the model: no setting"
    if plan.cross_entropy != "torch" and "cross_entropy" not in able:
        yield f"# the cross-entropy {plan.cross_entropy!r}: no setting"
    if not plan.packed and plan.padding_side == "left" and "padding_side" not in able:
        yield "# padding on the left: no setting; it pads on the right"
    if plan.ring_size > 1 and plan.scheme not in able:
        yield f"# {plan.scheme} over {plan.ring_size} ranks: no setting"
    for name in plan.shims:
        if "shims" not in able and (plan.ring_size == 1 or plan.scheme in able):
            text = SHIMS.get(name, f"the repair {name!r}")
            yield "# into the training script, no setting does it:"
            yield from (f"#   {line}" for line in text.splitlines())


def unlike(plan: Plan, *packings: str, told: str) -> Iterator[str]:
    """Yield a comment where a packed plan keeps documents apart otherwise than the framework does."""
    if plan.packed and plan.packing not in packings:
        yield f"# packing by {plan.packing}: no setting; {told}"

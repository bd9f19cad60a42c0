"""The model's three-row positions make flash attention read out of bounds.

What it checks: models with m-rope (position_ids of shape [3, batch, length]) in a transformers that passes these to
flash attention: before 4.54.0 for the Qwen-VL family, before 5.4.0 for Qwen3.5, before 5.0.0 for glm4v, glm4v_moe and
ernie4_5_vl_moe.

Why it matters: with one row per batch, cu_seqlens are computed from 3 × length positions. The job stops with "CUDA
error: an illegal memory access was encountered", often at a later call, or has a meaningless loss.

A packing launch of ms-swift 3.3 to 3.7 is not judged: it passes its own positions to flash attention (llm/template/
base.py:1845 of 3.6.4), and says itself which transformers that needs.

What to do: upgrade transformers if the framework allows a release that is recent enough, or run the model on sdpa.

Source: `text_position_ids` in models/*/modeling_*.py of the wheels 4.53.3, 4.54.0, 4.57.6, 5.0.0, 5.3.0 and 5.4.0;
huggingface/transformers#44643, #38007; reproduced on CPU with a stub kernel for `_is_packed_sequence`.
"""

from packaging.version import InvalidVersion, Version

from attncheck.doctor.fixes.model import change_transformers, use_other_attention
from attncheck.doctor.knowledge.padding import TEXT_POSITIONS_APART
from attncheck.doctor.queries import is_older, may_use, refuses_implementation
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model, need, only_if


@only_if(may_use, "flash_attention_2")  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.mrope or refuses_implementation(model, "flash_attention_2"):
        return
    if _are_positions_replaced(snapshot):
        return
    first_fixed = TEXT_POSITIONS_APART.get(model.model_type)
    version = snapshot.version("transformers")
    if first_fixed is None or not is_older(version, first_fixed):
        return
    installed = need(version, "the version of transformers")
    yield Problem(
        message=f"transformers {installed} passes the 3-row positions of {model.model_type} "
        "to flash attention, which crashes",
        evidence=(
            f"the first release that separates text positions is {first_fixed}",
            "static lane: mrope in config.json",
        ),
        fixes=(
            *change_transformers(snapshot, f">={first_fixed},<{_upper_bound(first_fixed)}"),
            *use_other_attention(snapshot, model, "flash_attention_2"),
        ),
        subject=model.model_type,
        predicted=True,
    )


def _are_positions_replaced(snapshot: Snapshot) -> bool:
    """Return whether ms-swift packs; from 3.3 to 3.7 it passes text positions to flash attention itself."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    if job is None or job.framework != "ms-swift" or not job.plan.packed:
        return False
    try:
        return Version("3.3") <= Version(job.version) < Version("3.8")
    except InvalidVersion:
        return False


def _upper_bound(first_fixed: str) -> str:
    return {"4.54.0": "5", "5.0.0": "5.4"}.get(first_fixed, "5.6")  # no newer than necessary


RULE = Rule("ATN408", "error", check, needs=frozenset({"flash"}))

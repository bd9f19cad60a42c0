"""flash-attn's deterministic backward needs gigabytes more memory at the launch's sequence length.

What it checks: a launch that trains deterministically with flash_attention_2. The buffer of flash-attn's
deterministic backward has one float32 copy of dq per split. Its size for one document that fills the row is compared
with a tenth of the GPU's memory. Packed rows of many documents have fewer splits and need less.

Why it matters: the job runs out of memory with settings that fit without determinism.

What to do: use fewer rows or tokens per device, or use determinism only for short debugging runs.

Source: flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp lines 1113-1116: dq_accum has nsplits times the size,
nsplits = ceil(multiprocessors / (batch * heads)). Multiprocessors: NVIDIA's whitepapers.
"""

from attncheck.doctor.knowledge.determinism import determinism_settings
from attncheck.doctor.queries import gpus
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need

MULTIPROCESSORS = {(8, 0): 108, (8, 6): 84, (8, 9): 128, (9, 0): 132, (10, 0): 148, (12, 0): 170}
GIB = 1 << 30
SHARE = 0.1  # share of the GPU's memory


def check(snapshot: Snapshot) -> Problems:
    plan = need(snapshot.job, "the launch").plan
    settings = determinism_settings(snapshot)
    if plan.attn_implementation != "flash_attention_2" or not (plan.deterministic or settings):
        return
    model = need(snapshot.model, "the model")
    heads, head_dim = need(model.num_heads, "its heads"), max(model.head_dims, default=0)
    for device, capability in gpus.known_capabilities(gpus.visible_gpus(snapshot))[:1]:
        processors = MULTIPROCESSORS.get(capability)
        if processors is None or not isinstance(device.memory_total_bytes, Known):
            return
        splits = -(-processors // (plan.batch * heads))
        rounded = -(-head_dim // 32) * 32
        one = plan.batch * (plan.max_length + 128) * heads * rounded * 4
        if splits > 1 and splits * one > SHARE * device.memory_total_bytes.value:
            yield Problem(
                message=(
                    f"deterministic backward needs {splits * one / GIB:.1f} GiB for dq at {plan.max_length} "
                    f"tokens, instead of {one / GIB:.1f}"
                ),
                subject=model.model_type,
                evidence=(f"{splits} splits on {processors} multiprocessors for {heads} heads", *settings),
                fixes=(
                    Fix("use shorter rows per device", "setting", "", sets={"max_length": str(plan.max_length // 2)}),
                    Fix("use determinism in debugging runs only", "env", "export FLASH_ATTENTION_DETERMINISTIC=0"),
                ),
            )


RULE = Rule("ATN176", "note", check, needs=frozenset({"job"}))

"""flex_attention's kernels do not fit the shared memory of this GPU at the model's head size.

What it checks: a head size above 128 if flex_attention is requested, on sm_86, sm_89 or sm_12x, which have 99 KiB of
shared memory per block.

Why it matters: compiling the backward pass raises "No valid triton configs. OutOfMemoryError: out of resource: shared
memory, Required: 114688, Hardware limit: 101376".

What to do: use another attention, or smaller blocks (`kernel_options={"BLOCK_M1": 16, "BLOCK_N1": 16, …}`, not tried
here).

Source: pytorch/pytorch#133254, #198224; pytorch/torchtune#2218. Reported by users and not run here, so it is a
warning.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.knowledge.models import SMALL_SHARED_MEMORY
from attncheck.doctor.queries import requested_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, value_or


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if requested_implementation(snapshot) != "flex_attention":
        return
    widest = max(model.head_dims, default=0)
    small = [g for g in snapshot.visible_devices() if value_or(g.compute_capability, (0, 0)) in SMALL_SHARED_MEMORY]
    if widest <= 128 or not small:
        return
    yield Problem(
        message=f"flex_attention's backward may not fit {small[0].sm} at head size {widest}",
        evidence=(f"cuda:{small[0].index} is {small[0].sm}: 99 KiB of shared memory per block",),
        fixes=use_other_attention(snapshot, model, "flex_attention"),
        subject=model.model_type,
        predicted=True,
    )


RULE = Rule("ATN356", "warning", check)

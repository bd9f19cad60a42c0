"""torch.compile breaks its graph in every layer of packed flash attention.

What it checks: a launch that compiles, packs and uses flash attention, without TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1.

Why it matters: flash-attn's varlen functions need the longest document's length as an int, for which transformers
calls `.item()`. This causes a graph break in each layer, and recompilations as lengths change. Compilation then costs
minutes and gains little.

What to do: let dynamo capture scalars.

Source: transformers 4.57.3 and 5.23.0, modeling_flash_attention_utils.py ("this will cause a graph break if you don't
set `TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1`"); huggingface/transformers#41803, #44962. Run with torch 2.13 on a CPU:
a function with `.item()` has one graph break, and none with the variable (tests/doctor/test_compiled_scalars.py).
"""

from attncheck.doctor.fixes.install import export_variable
from attncheck.doctor.queries.launch import describe_job, may_use_flash
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job

VARIABLE = "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS"


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if not job.plan.compile or not job.plan.packed or not may_use_flash(snapshot):
        return
    if VARIABLE in snapshot.environ:
        return
    yield Problem(
        message=(
            "torch.compile breaks the graph in every layer, because packed flash attention reads the longest length"
        ),
        evidence=(
            f"{describe_job(job)} compiles, packs, and runs {job.plan.attn_implementation}",
            f"the launch, as far as it was read, does not set {VARIABLE}",
        ),
        fixes=(export_variable(VARIABLE, "1"),),
        subject=describe_job(job),
        locations=(job.location,),
    )


RULE = Rule("ATN428", "warning", check, needs=frozenset({"job"}))

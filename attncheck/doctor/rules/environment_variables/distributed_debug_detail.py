"""TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective before it runs.

What it checks: the variable's value, if two or more GPUs are visible.

Why it matters: before each collective, another one on the CPU compares shapes and order across ranks. Ring attention
communicates in every layer, so it suffers most. Timings with this setting are meaningless.

What to do: unset it once the hang or mismatch is found.

Source: PyTorch documentation, "torch.distributed: Monitored Barrier and TORCH_DISTRIBUTED_DEBUG" ("will impact the
application performance and thus should only be used when debugging issues").
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import locate_variables, require_visible_gpus, sees_gpu
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

NAME = "TORCH_DISTRIBUTED_DEBUG"


def check(snapshot: Snapshot) -> Problems:
    is_on = snapshot.environ.get(NAME, "").upper() == "DETAIL"
    if not is_on or not sees_gpu(snapshot):
        return
    if len(snapshot.visible_devices()) < 2:
        require_visible_gpus(snapshot)
        return
    yield Problem(
        message=f"{NAME}=DETAIL checks every collective across ranks before it runs",
        subject=NAME,
        evidence=(f"environment: {NAME}=DETAIL", f"{len(snapshot.visible_devices())} GPUs are visible"),
        fixes=(install.unset_variable(NAME),),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN804", "warning", check)

"""CUDA_LAUNCH_BLOCKING=1 makes every kernel wait for the previous one.

What it checks: the variable on a machine with a GPU, if no determinism is requested (transformers'
enable_full_determinism sets it itself).

Why it matters: it is meant for finding a failing kernel. If it stays on, computation, transfer and launches no longer
overlap, and training is often slower by a third or more.

What to do: unset it.

Source: CUDA C++ Programming Guide, environment variables; transformers 5.23.0, `trainer_utils.py`.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.determinism import determinism_settings
from attncheck.doctor.queries import locate_variables, sees_gpu
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, value_or

NAME = "CUDA_LAUNCH_BLOCKING"


def check(snapshot: Snapshot) -> Problems:
    if value_or(snapshot.env(NAME), "") != "1" or determinism_settings(snapshot):
        return
    if not sees_gpu(snapshot):
        return
    yield Problem(
        message=f"{NAME}=1 makes every kernel wait for the previous one",
        subject=NAME,
        evidence=(f"{NAME}=1",),
        fixes=(install.unset_variable(NAME),),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN561", "warning", check)

"""TRITON_INTERPRET=1 runs every Triton kernel in Python on the CPU.

What it checks: the variable, if a package that uses Triton kernels is installed (liger-kernel, flash-attn's
cross-entropy and rotary kernels, flex_attention through torch).

Why it matters: it is Triton's debugging mode: a kernel becomes a loop of NumPy calls, thousands of times slower. A job
seems to hang at its first step.

What to do: unset it.

Source: Triton documentation, "Debugging Triton: Using the Interpreter".
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import locate_variables, sees_gpu
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if snapshot.environ.get("TRITON_INTERPRET") != "1" or not sees_gpu(snapshot):
        return
    triton_users = [name for name in ("liger-kernel", "flash-attn", "triton") if snapshot.has(name)]
    if not triton_users:
        return
    yield Problem(
        message="TRITON_INTERPRET=1 runs Triton kernels in Python on the CPU",
        subject="TRITON_INTERPRET",
        evidence=("environment: TRITON_INTERPRET=1", f"uses Triton: {', '.join(triton_users)}"),
        fixes=(install.unset_variable("TRITON_INTERPRET"),),
        locations=locate_variables(snapshot, "TRITON_INTERPRET"),
    )


RULE = Rule("ATN803", "warning", check)

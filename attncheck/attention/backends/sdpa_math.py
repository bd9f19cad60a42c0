"""SDPA's MATH: matrix products and a softmax in torch, in float32 for 16-bit inputs."""

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def refuse(case: Case, device: Device) -> str:
    """Return why SDPA cannot express the case, or ""."""
    if case.softcap:
        return "SDPA has no soft-cap"
    if case.sinks:
        return "SDPA has no sinks"
    return ""


def run(inputs: "Inputs", deterministic: bool) -> Outputs:
    """Run the case with MATH pinned."""
    from attncheck.attention.calls import sdpa

    return sdpa.run(inputs, deterministic, "MATH", native_gqa=True, compute_lse=None)


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls import sdpa

    return sdpa.script_lines(case, "MATH", native_gqa=True)


BACKEND = Backend(
    name="sdpa_math",
    title="torch SDPA, MATH",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    rounded_bias=True,
    takes_mask=True,
    bytes_per_score=28.0,
)

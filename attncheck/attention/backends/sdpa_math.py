"""SDPA's MATH: matrix products and a softmax in torch, in float32 for 16-bit inputs."""

from attncheck.attention.backends import Backend, Case, Device, Installed, defer


def refuse(case: Case, device: Device) -> str:
    """Return why SDPA cannot express the case, or ""."""
    if case.softcap:
        return "SDPA has no soft-cap"
    if case.sinks:
        return "SDPA has no sinks"
    return ""


BACKEND = Backend(
    name="sdpa_math",
    title="torch SDPA, MATH",
    package="torch",
    installed=Installed,
    refuse=refuse,
    run=defer("sdpa:run", "MATH", native_gqa=True, compute_lse=None),
    script_lines=defer("sdpa:script_lines", "MATH", native_gqa=True),
    rounded_bias=True,
    takes_mask=True,
    bytes_per_score=28.0,
)

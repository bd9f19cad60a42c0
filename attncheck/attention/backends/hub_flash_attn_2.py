"""The Hugging Face Hub's build of flash-attn 2, `kernels-community/flash-attn2`, where it is in the local cache.

transformers takes it for `flash_attention_2` where flash-attn is not installed. Nothing is downloaded; loading it runs
the code that the repository published, from the cache. Its functions are flash-attn's own (kernels-community of
2026-08-21, flash-attn2/torch-ext/flash_attn2/flash_attn_interface.py). It has CPU and XPU builds as well, which are not
looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.attention.backend import Backend, Device, Installed, Outputs
from attncheck.attention.backends.flash_attention_2 import DETERMINISTIC, SEEN, comparable, keywords, refuse_either
from attncheck.core.cases import Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs

REPOSITORY = "kernels-community/flash-attn2"


def find() -> Installed:
    """Return the kernel's version in the cache."""
    from attncheck.attention.calls import hub_kernels as hub_call

    return hub_call.find(REPOSITORY)


def refuse(case: Case, device: Device) -> str:
    """Return why the kernel cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "attncheck runs Hub kernels on CUDA only"
    return refuse_either(case, device)


def run(inputs: Inputs, deterministic: bool) -> Outputs:
    """Run the case with the kernel."""
    from attncheck.attention.calls import hub_kernels as hub_call

    return comparable(inputs.case, hub_call.run(inputs, REPOSITORY, None, **keywords(inputs, deterministic)))


def script_lines(case: Case) -> tuple[str, ...]:
    """Return the lines of a script that calls it."""
    from attncheck.attention.calls import flash_attn
    from attncheck.attention.calls import hub_kernels as hub_call

    return hub_call.call(case, REPOSITORY, flash_attn.arguments(case))


BACKEND = Backend(
    name="hub_flash_attn_2",
    title="flash-attn 2 from the Hugging Face Hub",
    package="kernels",
    installed=find,
    refuse=refuse,
    run=run,
    script_lines=script_lines,
    kernel_pattern=SEEN,
    indexes_by_cu_seqlens=True,
    deterministic=DETERMINISTIC,
    deterministic_switch="argument",
)

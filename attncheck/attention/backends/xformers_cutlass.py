"""xformers' CUTLASS operator, pinned: `fmha.cutlass`, the memory-efficient kernels.

xformers 0.0.35 calls torch's own copy of them (ops/fmha/cutlass.py: its operators are
`aten::_efficient_attention_forward` and `_backward`), so the kernels are those of SDPA's EFFICIENT_ATTENTION. It
supports all three dtypes, a head_dim that is a multiple of 8 (4 for float32), another head_dim for v, and GPUs up to
sm_90.
"""

from functools import partial
from typing import TYPE_CHECKING

from attncheck.attention.backends import Backend, Case, Device, Outputs, defer
from attncheck.attention.calls.flash_attn_package import find_distribution

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


installed = partial(find_distribution, "xformers", "xformers")


def refuse(case: Case, device: Device) -> str:
    """Return why the operator cannot run the case on `device`, or ""."""
    if device.kind == "cpu":
        return "xformers runs on CUDA only"
    if device.compute_capability > (9, 0):
        return "xformers' CUTLASS operator does not support GPUs newer than sm_90"
    if case.dtype == "bfloat16" and device.compute_capability < (8, 0):
        return "xformers supports bfloat16 on sm_80 or newer"
    step = 4 if case.dtype == "float32" else 8
    if device.compute_capability >= (8, 0) and (case.head_dim % step or case.v_head_dim % step):
        return f"xformers' CUTLASS operator takes a head_dim that is a multiple of {step}"
    if case.windowed and not case.causal and not case.alibi:
        return "xformers' CUTLASS operator has causal windows only"
    if case.windowed and case.backward and not case.alibi and case.seqlens_q != case.seqlens_k:
        return "xformers' CUTLASS operator has no backward for windows of unequal lengths"
    return _refuse_bias(case)


def _refuse_bias(case: Case) -> str:
    from attncheck.attention.calls import xformers

    return xformers.refuse(case)


def run(inputs: "Inputs", deterministic: bool) -> Outputs:
    """Run the case with fmha.cutlass; rows with windows run as documents, because that mask has a backward."""
    from xformers.ops.fmha import cutlass

    from attncheck.attention.calls import xformers

    rows_as_documents = inputs.case.windowed and not inputs.case.alibi
    return xformers.run(inputs, deterministic, (cutlass.FwOp, cutlass.BwOp), rows_as_documents=rows_as_documents)


BACKEND = Backend(
    name="xformers_cutlass",
    title="xformers, CUTLASS operator",
    package="xformers",
    installed=installed,
    refuse=refuse,
    run=run,
    script_lines=defer("xformers:script_lines", "cutlass"),
    kernel_pattern=r"fmha_cutlass|_efficient_attention_(forward|backward)",
    rounded_bias=True,
    deterministic="torch.use_deterministic_algorithms(True)",
    deterministic_switch="torch",
)

"""TORCH_CUDNN_SDPA_ENABLED is set, but this torch does not read it.

What it checks: the variable, compared with torch's own answer to `torch.backends.cuda.cudnn_sdp_enabled()` in a child
process with the same environment. The variable was the opt-in of torch 2.3 and 2.4. Since then the backend is on by
default, and only the call switches it off.

Why it matters: `TORCH_CUDNN_SDPA_ENABLED=0` is often recommended against NaN gradients of the cuDNN backend on
Hopper. It does nothing, and the job keeps using the kernel that it was meant to avoid.

What to do: call `torch.backends.cuda.enable_cudnn_sdp(False)` in the training script.

Source: pytorch `aten/src/ATen/Context.h` (enabled_cudnnSDP is a constant) and
`native/transformers/cuda/sdp_utils.cpp` (reads only TORCH_CUDNN_SDPA_DEPRIORITIZED, in earlier releases
TORCH_CUDNN_SDPA_PREFERRED); the libraries of the torch 2.13.0 CPU wheel lack the name; pytorch/pytorch#196678.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import cuda_of_torch, locate_variables, need_torch, require_import
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, need

NAME = "TORCH_CUDNN_SDPA_ENABLED"
DISABLE_CODE = "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)"


def check(snapshot: Snapshot) -> Problems:
    value = snapshot.environ.get(NAME, "")
    if value.lower() not in ("0", "false", "off", "no"):
        return
    torch = need_torch(snapshot)
    if cuda_of_torch(snapshot) is None:
        return
    require_import(snapshot, "torch")
    if not need(torch.sdpa_switches, "the state of SDPA's backends").get("CUDNN_ATTENTION", False):
        return
    yield Problem(
        message=f"{NAME}={value} does nothing: torch {torch.version} keeps CUDNN_ATTENTION on",
        subject=NAME,
        evidence=(f"environment: {NAME}={value}", "import lane: cudnn_sdp_enabled() is True"),
        fixes=(Fix("switch the backend off in the script", "edit", DISABLE_CODE), install.unset_variable(NAME)),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN801", "warning", check)

"""sdpa's cuDNN kernel can return NaN gradients on this GPU.

What it checks: a visible GPU of sm_90, torch 2.11 to 2.13 with a cuDNN newer than 9.15.0 (which sdpa then tries
first) and nothing that switches that kernel off. It is not reported if flash-attn is installed and importable and no
model requests sdpa, because such a job does not use sdpa's kernels. The kernel itself was not run.

Why it matters: the backward returns NaN for the queries while the loss stays finite. This needs an explicit attention
mask, a length of 64 modulo 128, and a row whose logsumexp is below -88.7. DPO and KTO runs on padded batches failed at
random steps because of it.

What to do: make cuDNN sdpa's last choice with the variable below (torch has read it since it prefers cuDNN; the older
TORCH_CUDNN_SDPA_ENABLED is no longer read), or call `torch.backends.cuda.enable_cudnn_sdp(False)`, or use flash.

Source: pytorch/pytorch#196678; huggingface/trl#7181; torch 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
`check_prefer_cudnn_attention`.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import cuda_of_torch, effective_attn_implementation, gpus, require_import
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, Version, need, value_or

FIRST_AFFECTED, FIRST_AFTER = Version("2.11"), Version("2.14.dev0")  # seen in 2.11 to 2.13
VARIABLE = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
LAST_CUDNN_NOT_PREFERRED = (9, 15, 0)  # torch prefers cuDNN above version 91500


def check(snapshot: Snapshot) -> Problems:
    if cuda_of_torch(snapshot) is None or not _uses_sdpa(snapshot):
        return
    hopper_gpus = [
        gpu for gpu, capability in gpus.known_capabilities(gpus.visible_gpus(snapshot)) if capability == (9, 0)
    ]
    version = need(snapshot.version("torch"), "torch's version")
    if not hopper_gpus or not FIRST_AFFECTED <= version < FIRST_AFTER or value_or(snapshot.env(VARIABLE), "") == "1":
        return
    torch = need(snapshot.torch, "torch")
    if value_or(torch.sdpa_switches, {}).get("CUDNN_ATTENTION") is False:
        return
    require_import(snapshot, "torch")
    cudnn = need(torch.cudnn, "cuDNN's version")
    if Version(cudnn).release <= LAST_CUDNN_NOT_PREFERRED:
        return
    snapshot.sets(VARIABLE)  # if it is unknown, the rule is skipped
    described = gpus.describe_gpus(hopper_gpus)
    yield Problem(
        message=f"on {described} sdpa prefers cuDNN {cudnn}, whose backward can return NaN with a mask",
        subject="sdpa",
        evidence=(f"torch {version}, cuDNN {cudnn}", *gpus.list_gpu_kinds(hopper_gpus), f"{VARIABLE} is not set"),
        fixes=(
            install.export_variable(VARIABLE, "1", "make cuDNN sdpa's last choice"),
            Fix("or switch it off in the code", "edit", "torch.backends.cuda.enable_cudnn_sdp(False)"),
        ),
        predicted=True,
    )


def _uses_sdpa(snapshot: Snapshot) -> bool:
    if isinstance(snapshot.job, Known):
        return effective_attn_implementation(snapshot.job.value) == "sdpa"
    if isinstance(snapshot.model, Known) and isinstance(snapshot.model.value.attn_implementation, Known):
        return snapshot.model.value.attn_implementation.value == "sdpa"
    outcome = snapshot.imported("flash_attn")
    import_failed = isinstance(outcome, Known) and outcome.value.outcome != "ok"
    return import_failed or not snapshot.has("flash-attn")


RULE = Rule("ATN221", "warning", check)

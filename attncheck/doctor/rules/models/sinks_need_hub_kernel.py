"""A model's class redirects flash attention to a Hub kernel that is not available here.

What it checks: whether transformers replaces the requested flash attention by another kernel, because the model's
class lists the kernels that compute its attention correctly (`_compatible_flash_implementations`: gpt_oss since
5.3.0, and others with attention sinks or their own layout), and whether that kernel is in the local cache and built
for these GPUs. The installed class decides if transformers was imported here, else the table of releases.

Why it matters: loading downloads a kernel, which fails on an offline node with FileNotFoundError. vllm-flash-attn3
supports sinks only on Hopper (sm_90), so other GPUs fail at the first call. Installing flash-attn 2 does not help: it
is not on the list.

What to do: use flex_attention or eager, or download the kernel beforehand on a node with network access.

Source: transformers 5.3.0 to 5.24.0, models/gpt_oss/modeling_gpt_oss.py (`_compatible_flash_implementations`),
modeling_utils.py (`_check_and_adjust_attn_implementation`); huggingface/kernels-community at 40d4194f;
unslothai/unsloth#3346, #4867.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.knowledge.gpus import has_code_for
from attncheck.doctor.queries import (
    find_kernel_targets,
    find_redirect,
    gpus,
    is_hub_offline,
    may_use,
    requested_implementation,
    requested_model,
)
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    requested = requested_implementation(snapshot)
    implementation = requested if requested.startswith("flash_attention_") else "flash_attention_2"
    if not may_use(snapshot, implementation):
        return  # the launch requests another kernel, such as kernels-community/vllm-flash-attn3
    model = requested_model(snapshot)
    if model is None or not (kernel := find_redirect(snapshot, model, implementation)) or "/" not in kernel:
        return
    targets = find_kernel_targets(kernel, model)
    unsupported = [
        device
        for device, capability in gpus.known_capabilities(snapshot.visible_devices())
        if targets and not has_code_for(targets, capability)
    ]
    if kernel in snapshot.hub.kernels and not unsupported:
        return
    reason = "is not in the Hub's cache"
    if unsupported:
        purpose = " for models with sinks" if model.sinks else ""
        reason = f"is built for {', '.join(targets)}{purpose}, not {unsupported[0].sm}"
    installed = isinstance(snapshot.package("flash-attn"), Known)
    yield Problem(
        message=f"{implementation} for {model.model_type} uses {kernel}, which {reason}",
        evidence=(
            (f"transformers replaces {implementation} by it: the class lists the kernels that compute its attention"),
            *(("flash-attn is installed, but is not among them",) if installed else ()),
            f"offline mode is {'on' if is_hub_offline(snapshot) else 'off'}",
        ),
        fixes=use_other_attention(snapshot, model, implementation, "flash_attention_2"),
        subject=model.model_type,
    )


RULE = Rule("ATN313", "warning", check, needs=frozenset({"flash"}))

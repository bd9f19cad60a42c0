"""A visible GPU is too old for flash-attn.

What it checks: the compute capability of every visible GPU, against sm_80, the oldest that flash-attn 2 accepts.

Why it matters: the first attention forward raises `RuntimeError: FlashAttention only supports Ampere GPUs or newer.`,
after the model was loaded. Packing and sequence parallelism that need flash-attn are unavailable too.

What to do: use sdpa, whose own kernels run on these GPUs, or make only newer GPUs visible to the job.

Source: flash-attn 2.8.3 csrc/flash_attn/flash_api.cpp lines 370, 542, 798; Dao-AILab/flash-attention#762;
hiyouga/LLaMA-Factory#3508; verl-project/verl#985.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import FLASH_ATTN_MIN_CAPABILITY
from attncheck.doctor.queries import change_settings, effective_attn_implementation, gpus, locate_settings
from attncheck.doctor.rules import Job, Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    if job is not None and effective_attn_implementation(job) != "flash_attention_2":
        return
    devices = gpus.visible_gpus(snapshot)
    too_old = [gpu for gpu, capability in gpus.known_capabilities(devices) if capability < FLASH_ATTN_MIN_CAPABILITY]
    for group in gpus.group_by_capability(too_old):
        yield Problem(
            message=f"{gpus.describe_gpus(group)} cannot run flash_attention_2, which needs sm_80 or newer",
            subject=f"GPU {group[0].index}",
            evidence=gpus.list_gpu_kinds(group),
            fixes=(
                install.set_attn_implementation(snapshot, "sdpa")
                if job is None
                else change_settings(*_sdpa_settings(job)),
            ),
            locations=locate_settings(job, "attn_implementation", "packing") if job is not None else (),
        )


def _sdpa_settings(job: Job) -> tuple[str, dict[str, str]]:
    """Return the title and settings of the same job with sdpa, without features that sdpa lacks there."""
    settings = {"attn_implementation": "sdpa"}
    if job.plan.packed and job.packs_with and "sdpa" not in job.packs_with:
        settings["packing"] = "off"
    if job.plan.ring_size > 1 and job.hooked and "sdpa" not in job.hooked:
        settings["ring_size"] = "1"
    dropped = [name for key, name in (("packing", "packing"), ("ring_size", "the ring")) if key in settings]
    return "use sdpa" + (f", without {' and '.join(dropped)}" if dropped else ""), settings


RULE = Rule("ATN206", "error", check, needs=frozenset({"flash"}))

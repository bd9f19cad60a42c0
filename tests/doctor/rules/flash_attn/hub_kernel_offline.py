"""Cases for ATN158."""

from dataclasses import replace

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import REPOSITORY, with_hub_kernels

ONLINE = with_hub_kernels("5.17.0", "0.16.0")
OFFLINE = with_hub_kernels("5.17.0", "0.16.0", True)
OFFLINE_LAUNCH = {"HF_HUB_OFFLINE": "1"}

FIRES = {
    "offline and not cached": OFFLINE,
    "the launch requests it by name": s.with_trl_job(OFFLINE, REPOSITORY),
    "the launch is offline": s.with_trl_job(replace(ONLINE, environ=OFFLINE_LAUNCH), REPOSITORY),
    "another version is cached": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, (REPOSITORY, f"{REPOSITORY}@v2")), REPOSITORY
    ),
}
VLLM = "kernels-community/vllm-flash-attn3"
FIRES |= {
    "flash-attn 3 is requested and missing": s.with_trl_job(
        s.with_package(OFFLINE, "flash-attn", "2.8.3"), "flash_attention_3"
    ),
    "requested on a node without a GPU": s.with_trl_job(s.with_gpus(OFFLINE), "flash_attention_2"),
    "no flash attention by its name": s.with_trl_job(OFFLINE, "kernels-community/sage-attention"),
    "the branch is cached, not the version": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, (VLLM, f"{VLLM}@main")), VLLM
    ),
}
SILENT = {
    "flash-attn 3 is requested and there": s.with_trl_job(
        s.with_package(OFFLINE, "flash-attn-3", "3.0.0"), "flash_attention_3"
    ),
    "sdpa is requested": s.with_trl_job(OFFLINE, "sdpa"),
    "another kernel's first version is cached": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, (VLLM, f"{VLLM}@v1")), VLLM
    ),
    "aiter's second": s.with_trl_job(
        with_hub_kernels("5.20.2", "0.17.2", True, ("kernels-community/aiter-flash-attn@v2",)),
        "kernels-community/aiter-flash-attn",
    ),
    "flash-attn 4's version 0": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, ("kernels-community/flash-attn4@v0",)), "flash_attention_4"
    ),
    "the launch goes online": s.with_trl_job(replace(OFFLINE, environ={"HF_HUB_OFFLINE": "0"}), REPOSITORY),
    "its revision is cached": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, (REPOSITORY, f"{REPOSITORY}@main")), f"{REPOSITORY}@main"
    ),
    "a commit, of which the cache does not tell": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, (REPOSITORY,)), f"{REPOSITORY}@0123abcd"
    ),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "online: ATN157": with_hub_kernels("5.17.0", "0.16.0"),
    "cached": with_hub_kernels("5.17.0", "0.16.0", True, (f"{REPOSITORY}@v3",)),
    "4.55.4, before the fallback": with_hub_kernels("4.55.4", "0.9.0", True),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the kernel, its version, and a fix."""
    return "kernels-community/" in finding and "sdpa" in finding and "version=" in finding

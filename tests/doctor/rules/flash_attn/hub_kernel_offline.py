"""Cases for ATN158."""

from dataclasses import replace

from tests import snapshots as s
from tests.doctor.rules.flash_attn.hub_kernel_surprise import REPOSITORY, with_hub_kernels

ONLINE = with_hub_kernels("5.17.0", "0.16.0")
OFFLINE = with_hub_kernels("5.17.0", "0.16.0", True)
OFFLINE_LAUNCH = {"HF_HUB_OFFLINE": "1"}

FIRES = {
    "offline and not cached": OFFLINE,
    "the launch asks for it by name": s.with_trl_job(OFFLINE, REPOSITORY),
    "the launch is offline": s.with_trl_job(replace(ONLINE, environ=OFFLINE_LAUNCH), REPOSITORY),
    "another version is cached": s.with_trl_job(
        with_hub_kernels("5.17.0", "0.16.0", True, (REPOSITORY, f"{REPOSITORY}@v2")), REPOSITORY
    ),
}
SILENT = {
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
    """Return whether the finding's text names the kernel and a fix."""
    return REPOSITORY in finding and "sdpa" in finding and "version=3)" in finding

"""Cases for ATN157."""

from dataclasses import replace

from attncheck.core.environment import Hub
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

REPOSITORY = "kernels-community/flash-attn2"


def with_hub_kernels(transformers: str, kernels: str, offline: bool = False, cached: tuple[str, ...] = ()) -> Snapshot:
    """Return a GPU machine without flash-attn, with `kernels` and nothing imported."""
    snapshot = s.with_package(
        s.without_packages(s.h200(), "flash-attn", "ring-flash-attn"), "transformers", transformers
    )
    snapshot = s.with_package(snapshot, "kernels", kernels)
    nothing = s.Absent("not requested")
    return replace(snapshot, imports=nothing, interfaces=nothing, hub=Hub(offline, cached))


FIRES = {
    "5.17.0": with_hub_kernels("5.17.0", "0.16.0"),
    "4.56.0, the first": with_hub_kernels("4.56.0", "0.9.0"),
    "5.12.0 with the last `kernels` it can import": with_hub_kernels("5.12.0", "0.13.0"),
    "offline but cached": with_hub_kernels("5.18.0", "0.17.0", True, (f"{REPOSITORY}@v3",)),
    "the model requests it": s.with_model(
        with_hub_kernels("5.17.0", "0.16.0"), attn_implementation=s.Known("flash_attention_2")
    ),
}
SILENT = {
    "the launch requests it by name": s.with_trl_job(with_hub_kernels("5.17.0", "0.16.0"), f"{REPOSITORY}@v2"),
    "flash-attn 3 is there, before 5.4": s.with_package(with_hub_kernels("5.3.0", "0.10.2"), "flash-attn-3", "3.0.0"),
    "the recorded machine: flash-attn is there": s.h200(),
    "the laptop": s.laptop(),
    "4.55.4, before the fallback": with_hub_kernels("4.55.4", "0.9.0"),
    "a `kernels` that 5.17 does not accept": with_hub_kernels("5.17.0", "0.17.2"),
    "a `kernels` that 5.12 cannot import": with_hub_kernels("5.12.0", "0.14.1"),
    "no `kernels`": s.without_packages(with_hub_kernels("5.17.0", "0.16.0"), "kernels"),
    "no GPU": s.with_gpus(with_hub_kernels("5.17.0", "0.16.0")),
    "offline and not cached: ATN158": with_hub_kernels("5.17.0", "0.16.0", True),
    "flash_attn comes from elsewhere": s.with_interfaces(
        with_hub_kernels("5.17.0", "0.16.0"), availability={"is_flash_attn_2_available": True}
    ),
    "the model requests sdpa": s.with_model(with_hub_kernels("5.17.0", "0.16.0"), attn_implementation=s.Known("sdpa")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the repository and the fixes."""
    offered = finding.split("fixes=")[1]
    return "kernels-community/flash-attn" in finding and "sdpa" in finding and "@v3" not in offered

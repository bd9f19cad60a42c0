"""Cases for ATN207."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_flash_attn_targets(snapshot: Snapshot, *sass: str, ptx: tuple[str, ...] = ()) -> Snapshot:
    """Compile flash-attn for these targets."""
    with_nvcc = s.with_build_tools(s.with_package(snapshot, "flash-attn", "2.8.3"), nvcc=s.Known("12.8"))
    return s.with_binary(with_nvcc, "flash_attn_2_cuda", distribution="flash-attn", sass=sass, ptx=ptx)


FIRES = {
    "Hopper's code on an RTX 5090": with_flash_attn_targets(s.with_gpus(s.h200(), (12, 0)), "sm_90"),
    "Hopper's code on an A100": with_flash_attn_targets(s.with_gpus(s.h200(), (8, 0)), "sm_90"),
    "Ampere's code on an H100: machine code does not cross majors": with_flash_attn_targets(
        s.with_gpus(s.h200(), (9, 0)), "sm_80"
    ),
    "Blackwell, nvcc too old": s.with_build_tools(
        with_flash_attn_targets(s.with_gpus(s.h200(), (10, 0)), "sm_80", "sm_90"), nvcc=s.Known("12.4")
    ),
    "sm_86 code on sm_80: a lower minor": with_flash_attn_targets(s.with_gpus(s.h200(), (8, 0)), "sm_86"),
    "a new card alongside one that works: one build for both": with_flash_attn_targets(
        s.with_gpus(s.h200(), (12, 0), (9, 0)), "sm_90"
    ),
    "PTX of one architecture alone": with_flash_attn_targets(
        s.with_gpus(s.h200(), (10, 0)), "sm_90", ptx=("compute_90a",)
    ),
    "Thor, which flash-attn has no target for": with_flash_attn_targets(
        s.with_gpus(s.h200(), (11, 0)), "sm_80", "sm_90", "sm_100", "sm_120"
    ),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "sm_80 code on an RTX 4090": with_flash_attn_targets(s.with_gpus(s.h200(), (8, 9)), "sm_80"),
    "sm_100 code on a B300": with_flash_attn_targets(s.with_gpus(s.h200(), (10, 3)), "sm_100"),
    "PTX goes forward": with_flash_attn_targets(s.with_gpus(s.h200(), (12, 0)), "sm_80", ptx=("compute_90",)),
    "older than flash-attn runs on: another rule's": with_flash_attn_targets(s.with_gpus(s.h200(), (7, 5)), "sm_80"),
    "targets not read": with_flash_attn_targets(s.with_gpus(s.h200(), (12, 0))),
    "not installed": s.without_packages(s.with_gpus(s.h200(), (12, 0)), "flash-attn"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds a build for the GPUs here, or sdpa if flash-attn has none."""
    thor = "sm_110" in finding
    return 'attn_implementation="sdpa"' in finding and (thor or "FLASH_ATTN_CUDA_ARCHS=" in finding)

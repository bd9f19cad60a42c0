"""CUDA versions and their drivers, and the CUDA builds published for each torch.

Sources, read 2026-11-21: NVIDIA "CUDA Compatibility", table of minor version compatibility (docs.nvidia.com/deploy/
cuda-compatibility: 13.x from R580, 12.x from R525, 11.x from R450); pytorch.org/get-started/previous-versions (2.6.0 to
2.9.1); replicate/cog pkg/config/torch_compatibility.json (2.2.0 to 2.12.1, taken from download.pytorch.org);
pytorch/FBGEMM#5976 (2.13); pytorch/pytorch#178665, #190355 and #190385 (support matrices of 2.12 to 2.15).
"""

# CUDA major version -> oldest Linux driver that runs any of its minor versions.
MINIMUM_DRIVER: dict[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580"}

# torch (major, minor) -> the CUDA versions of its wheels on download.pytorch.org, oldest first. The list holds only
# what the sources name; a release may have one more.
TORCH_BUILDS: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (2, 2): ((11, 8), (12, 1)),
    (2, 3): ((11, 8), (12, 1)),
    (2, 4): ((11, 8), (12, 1), (12, 4)),
    (2, 5): ((11, 8), (12, 1), (12, 4)),
    (2, 6): ((11, 8), (12, 4), (12, 6)),
    (2, 7): ((11, 8), (12, 6), (12, 8)),
    (2, 8): ((12, 6), (12, 8), (12, 9)),
    (2, 9): ((12, 6), (12, 8), (13, 0)),
    (2, 10): ((12, 6), (12, 8), (13, 0)),
    (2, 11): ((12, 6), (12, 8), (13, 0)),
    (2, 12): ((12, 6), (12, 9), (13, 0), (13, 2)),
    (2, 13): ((12, 6), (13, 0)),
}
# Wheels for CUDA 12.8 and newer omit GPUs older than Turing; wheels before 12.8 do not support Blackwell.
TURING = (7, 5)
BLACKWELL = (10, 0)
FIRST_CUDA_WITH_BLACKWELL = (12, 8)


def newest_cuda_major(driver: tuple[int, ...]) -> int:
    """Return the newest CUDA major version that the driver `driver` (such as (580, 159, 4)) supports; 0 if none."""
    supported = [major for major, minimum in MINIMUM_DRIVER.items() if driver >= tuple(map(int, minimum.split(".")))]
    return max(supported, default=0)


def choose_torch_build(
    torch: tuple[int, int],
    cuda_major: int,
    driver_cuda: tuple[int, int] | None,
    capabilities: tuple[tuple[int, int], ...],
) -> tuple[int, int] | None:
    """Return the CUDA build of `torch` for a driver of CUDA `cuda_major` and for these GPUs; None if there is none.

    `driver_cuda` is the CUDA version that the driver reports. The result is the newest build that does not exceed it,
    or else the oldest build of that major version.
    """
    builds = [build for build in TORCH_BUILDS.get(torch, ()) if build[0] <= cuda_major]
    if any(capability >= BLACKWELL for capability in capabilities):
        builds = [build for build in builds if build >= FIRST_CUDA_WITH_BLACKWELL]
    if any(capability < TURING for capability in capabilities):
        builds = [build for build in builds if build < FIRST_CUDA_WITH_BLACKWELL]
    supported = [build for build in builds if driver_cuda is None or build <= driver_cuda]
    if supported:
        return max(supported)
    return min(builds, default=None)

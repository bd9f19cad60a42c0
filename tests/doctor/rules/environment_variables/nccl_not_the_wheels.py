"""Cases for ATN550."""

from tests import snapshots as s

WITH_WHEEL = s.with_torch(s.with_package(s.h200(), "nvidia-nccl-cu13", "2.28.9"), nccl=s.Known("2.28.9"))
NOT_IMPORTED = s.with_torch(WITH_WHEEL, nccl=s.Unreadable("torch was not imported"))

FIRES = {
    "a module system's NCCL": s.with_env(
        s.with_torch(WITH_WHEEL, nccl=s.Known("2.21.5")), LD_LIBRARY_PATH="/opt/nccl/lib"
    ),
    "preloaded, torch not imported": s.with_env(NOT_IMPORTED, LD_PRELOAD="/usr/lib/libnccl.so.2"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the wheel's own": WITH_WHEEL,
    "a post-release of the same": s.with_package(WITH_WHEEL, "nvidia-nccl-cu13", "2.28.9.post1"),
    "LD_LIBRARY_PATH alone proves nothing": s.with_env(WITH_WHEEL, LD_LIBRARY_PATH="/usr/lib"),
    "torch not imported": NOT_IMPORTED,
    "no NCCL wheel: the user's own build": s.without_packages(
        s.with_torch(WITH_WHEEL, nccl=s.Known("2.21.5")), "nvidia-nccl-cu13"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the line to paste."""
    return "unset LD_" in finding

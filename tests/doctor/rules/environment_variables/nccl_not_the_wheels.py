"""Cases for ATN550."""

from tests import snapshots as s

HERE = s.torch(s.package(s.h200(), "nvidia-nccl-cu13", "2.28.9"), nccl=s.Known("2.28.9"))
UNREAD = s.torch(HERE, nccl=s.Unreadable("torch was not imported"))

FIRES = {
    "a module system's NCCL": s.env(s.torch(HERE, nccl=s.Known("2.21.5")), LD_LIBRARY_PATH="/opt/nccl/lib"),
    "preloaded, torch not imported": s.env(UNREAD, LD_PRELOAD="/usr/lib/libnccl.so.2"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "the wheel's own": HERE,
    "a post-release of the same": s.package(HERE, "nvidia-nccl-cu13", "2.28.9.post1"),
    "LD_LIBRARY_PATH alone proves nothing": s.env(HERE, LD_LIBRARY_PATH="/usr/lib"),
    "torch not imported": UNREAD,
    "no NCCL wheel: a build of one's own": s.without(s.torch(HERE, nccl=s.Known("2.21.5")), "nvidia-nccl-cu13"),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds the line to paste."""
    return "unset LD_" in finding

"""Cases for ATN167."""

from dataclasses import replace

from attncheck.core.environment import ExtensionBuild
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

XFORMERS = s.with_package(s.h200(), "xformers", "0.0.35", requires=("torch>=2.10",))


def with_operators(snapshot: Snapshot, cuda: str = "12.8", **binary: object) -> Snapshot:
    """Return the machine with xformers' library, built for this CUDA."""
    build = ExtensionBuild("xformers", "2.10.0+cu128", cuda)
    changed = s.with_binary(snapshot, "xformers._C", distribution="xformers", **binary)
    return s.with_import(replace(changed, builds=(build,)), "xformers.ops")


LINKED_AGAINST_12 = with_operators(XFORMERS, needed=("libcudart.so.12",), unresolved=("libcudart.so.12",))

FIRES = {
    "the wheel of PyPI alongside a CUDA 13 torch": LINKED_AGAINST_12,
    "built without CUDA": with_operators(XFORMERS, cuda=""),
    "built for another Python": with_operators(XFORMERS, problem="built for cpython-311, this is cpython-312"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "in order": with_operators(XFORMERS, needed=("libcudart.so.12",)),
    "nothing was read": XFORMERS,
    "torch without CUDA": with_operators(s.with_package(s.laptop(), "xformers", "0.0.35"), cuda=""),
    "ROCm": s.with_torch(with_operators(XFORMERS, cuda=""), cuda=s.Absent(), hip=s.Known("6.4")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text tells what does not run, and a way out."""
    return "has no operators" in finding and "use sdpa" in finding

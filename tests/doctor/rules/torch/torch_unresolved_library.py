"""Cases for ATN103."""

from dataclasses import replace

from attncheck.core.environment import Binary
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_unresolved_library(name: str) -> Snapshot:
    """Return the recorded machine, its torch never imported, with a library of torch's that needs `name`."""
    library = Binary("torch/lib/libtorch_cuda.so", "torch", "", 1, "x86_64", needed=(name,), unresolved=(name,))
    return replace(s.h200(), binaries=(library,), imports=s.Absent("not requested"))


FIRES = {
    "cuDNN was removed": with_unresolved_library("libcudnn.so.9"),
    "NCCL was removed": with_unresolved_library("libnccl.so.2"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "torch was imported anyway": s.with_import(with_unresolved_library("libcudnn.so.9"), "torch"),
    "torch was imported and failed: ATN102": s.with_import(
        with_unresolved_library("libcudnn.so.9"), "torch", "raised", message="x"
    ),
    "the driver's library is not torch's matter": with_unresolved_library("libcuda.so.1"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    return ("libcudnn.so.9" in finding or "libnccl.so.2" in finding) and "force-reinstall" in finding

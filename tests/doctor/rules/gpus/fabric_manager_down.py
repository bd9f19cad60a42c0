"""Cases for ATN204."""

from tests import snapshots as s

NOT_INITIALIZED = s.with_torch(
    s.h200(),
    cuda_available=s.Known(False),
    cuda_error=s.Known("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
)
NOT_IMPORTED = s.with_torch(s.h200(), cuda_available=s.Unreadable("torch was not imported"), cuda_error=s.Unreadable())

FIRES = {
    "torch says 802": s.with_driver(NOT_INITIALIZED, fabric=s.Known("In Progress")),
    "802, and no state is told": s.with_driver(NOT_INITIALIZED, fabric=s.Absent()),
    "in progress, torch not tried": s.with_driver(NOT_IMPORTED, fabric=s.Known("In Progress")),
    "not started, torch not tried": s.with_driver(NOT_IMPORTED, fabric=s.Known("Not Started")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "completed": s.with_driver(NOT_IMPORTED, fabric=s.Known("Completed")),
    "no fabric": s.with_driver(NOT_IMPORTED, fabric=s.Absent("no NVSwitch")),
    "in progress, but CUDA started": s.with_driver(
        s.with_torch(s.h200(), cuda_available=s.Known(True), cuda_error=s.Absent()), fabric=s.Known("In Progress")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the service."""
    return "systemctl restart nvidia-fabricmanager" in finding

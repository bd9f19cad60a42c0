"""Cases for ATN204."""

from tests import snapshots as s

REFUSED = s.torch(
    s.h200(),
    cuda_available=s.Known(False),
    cuda_error=s.Known("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
)
UNTRIED = s.torch(s.h200(), cuda_available=s.Unreadable("torch was not imported"), cuda_error=s.Unreadable())

FIRES = {
    "torch says 802": s.driver(REFUSED, fabric=s.Known("In Progress")),
    "802, and no state is told": s.driver(REFUSED, fabric=s.Absent()),
    "in progress, torch not tried": s.driver(UNTRIED, fabric=s.Known("In Progress")),
    "not started, torch not tried": s.driver(UNTRIED, fabric=s.Known("Not Started")),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "completed": s.driver(UNTRIED, fabric=s.Known("Completed")),
    "no fabric": s.driver(UNTRIED, fabric=s.Absent("no NVSwitch")),
    "in progress, but CUDA started": s.driver(
        s.torch(s.h200(), cuda_available=s.Known(True), cuda_error=s.Absent()), fabric=s.Known("In Progress")
    ),
}


def says(finding: str) -> bool:
    """Say whether the finding's text names the service."""
    return "systemctl restart nvidia-fabricmanager" in finding

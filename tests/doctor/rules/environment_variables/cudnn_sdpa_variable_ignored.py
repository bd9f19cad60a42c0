"""Cases for ATN801."""

from tests import snapshots as s

ALL_ON = {"FLASH_ATTENTION": True, "EFFICIENT_ATTENTION": True, "MATH": True, "CUDNN_ATTENTION": True}
CUDNN_OFF = {**ALL_ON, "CUDNN_ATTENTION": False}
WITH_VARIABLE = s.with_env(s.h200(), TORCH_CUDNN_SDPA_ENABLED="0")

FIRES = {"requested off, and on": s.with_torch(WITH_VARIABLE, sdpa_switches=s.Known(ALL_ON))}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "requested off, and off": s.with_torch(WITH_VARIABLE, sdpa_switches=s.Known(CUDNN_OFF)),
    "requested on": s.with_torch(s.with_env(s.h200(), TORCH_CUDNN_SDPA_ENABLED="1"), sdpa_switches=s.Known(ALL_ON)),
    "torch was not imported": s.with_torch(WITH_VARIABLE, sdpa_switches=s.Unreadable("torch was not imported")),
    "a torch without the switch": s.with_torch(WITH_VARIABLE, sdpa_switches=s.Known({"MATH": True})),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the call."""
    return "enable_cudnn_sdp(False)" in finding

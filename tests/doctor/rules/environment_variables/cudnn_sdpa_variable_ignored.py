"""Cases for ATN801."""

from tests import snapshots as s

ON = {"FLASH_ATTENTION": True, "EFFICIENT_ATTENTION": True, "MATH": True, "CUDNN_ATTENTION": True}
OFF = {**ON, "CUDNN_ATTENTION": False}
ASKED = s.env(s.h200(), TORCH_CUDNN_SDPA_ENABLED="0")

FIRES = {"asked for off, and on": s.torch(ASKED, sdpa_switches=s.Known(ON))}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "asked for off, and off": s.torch(ASKED, sdpa_switches=s.Known(OFF)),
    "asked for on": s.torch(s.env(s.h200(), TORCH_CUDNN_SDPA_ENABLED="1"), sdpa_switches=s.Known(ON)),
    "torch was not imported": s.torch(ASKED, sdpa_switches=s.Unreadable("torch was not imported")),
    "a torch without the switch": s.torch(ASKED, sdpa_switches=s.Known({"MATH": True})),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds the call."""
    return "enable_cudnn_sdp(False)" in finding

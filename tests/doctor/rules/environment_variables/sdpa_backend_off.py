"""Cases for ATN558."""

from tests import snapshots as s

ALL_ON = {"FLASH_ATTENTION": True, "EFFICIENT_ATTENTION": True, "MATH": True, "CUDNN_ATTENTION": True}
FIRES = {
    "flash off": s.with_torch(s.h200(), sdpa_switches=s.Known({**ALL_ON, "FLASH_ATTENTION": False})),
    "both off": s.with_torch(
        s.h200(), sdpa_switches=s.Known({**ALL_ON, "FLASH_ATTENTION": False, "EFFICIENT_ATTENTION": False})
    ),
}
SILENT = {
    "all on": s.with_torch(s.h200(), sdpa_switches=s.Known(ALL_ON)),
    "only cuDNN off": s.with_torch(s.h200(), sdpa_switches=s.Known({**ALL_ON, "CUDNN_ATTENTION": False})),
    "not asked": s.with_torch(s.h200(), sdpa_switches=s.Unreadable("torch was not imported")),
    "laptop": s.laptop(),
}


def says(text: str) -> bool:
    return "torch.backends.cuda.enable_flash_sdp(True)" in text

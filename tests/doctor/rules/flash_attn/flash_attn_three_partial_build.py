"""Cases for ATN168."""

from dataclasses import replace

from attncheck.core.environment import ExtensionBuild
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_build(*switches: str, asked: str = "flash_attention_3", **model: object) -> Snapshot:
    """Return the machine with a flash-attn-3 without these parts, and a model that asks for `asked`."""
    flags = {f"FLASHATTENTION_DISABLE_{name}": name in switches for name in (*switches, "HDIM64", "HDIM128")}
    installed = s.with_package(s.h200(), "flash-attn-3", "3.0.0")
    built = replace(installed, builds=(ExtensionBuild("flash-attn-3", flags=flags),))
    return s.with_model(built, attn_implementation=s.Known(asked), **model)


LARGE = ("HDIM96", "HDIM192", "HDIM256")
FIRES = {
    "head size 256 of a build up to 128": with_build(*LARGE, head_dims=(256,)),
    "inference only": with_build("BACKWARD"),
    "no windows": with_build("LOCAL", sliding_window=s.Known(4096)),
    "no softcap": with_build("SOFTCAP", softcap=s.Known(50.0)),
    "float16 job": s.with_job(with_build("FP16"), {"attn_implementation": "flash_attention_3", "precision": "fp16"}),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "head size 80 runs as 128": with_build("HDIM96", head_dims=(80,)),
    "not requested": with_build(*LARGE, asked="sdpa", head_dims=(256,)),
    "the job requests another": s.with_job(with_build("BACKWARD"), {"attn_implementation": "sdpa"}),
    "no switch is known": s.with_model(
        s.with_package(s.h200(), "flash-attn-3", "3.0.0"), attn_implementation=s.Known("flash_attention_3")
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text tells that it is the build."""
    return "this build of flash-attn-3 3.0.0 lacks" in finding

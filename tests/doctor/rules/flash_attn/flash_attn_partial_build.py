"""Cases for ATN174."""

from dataclasses import replace

from attncheck.core.environment import ExtensionBuild
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_build(*switches: str) -> Snapshot:
    """Return the machine with a flash-attn that leaves these parts out."""
    names = {*switches, "BACKWARD", "LOCAL", "SOFTCAP", "DROPOUT", "ALIBI", "UNEVEN_K"}
    flags = {f"FLASHATTENTION_DISABLE_{name}": name in switches for name in names}
    return replace(s.h200(), builds=(ExtensionBuild("flash-attn", flags=flags),))


FIRES = {
    "inference only": with_build("BACKWARD"),
    "no windows": s.with_model(with_build("LOCAL"), sliding_window=s.Known(4096)),
    "no softcap": s.with_model(with_build("SOFTCAP"), softcap=s.Known(50.0)),
    "no dropout": s.with_model(with_build("DROPOUT"), attention_dropout=s.Known(0.1)),
    "no ALiBi": s.with_model(with_build("ALIBI"), alibi=True),
    "head size 80": s.with_model(with_build("UNEVEN_K"), head_dims=(80,)),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "a whole build": s.with_model(with_build(), sliding_window=s.Known(4096), head_dims=(80,)),
    "left out, and not needed": s.with_model(with_build("LOCAL", "SOFTCAP", "DROPOUT", "ALIBI", "UNEVEN_K")),
    "no model is named": with_build("LOCAL"),
    "another attention package": s.without_packages(with_build("BACKWARD"), "flash-attn"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text tells that it is the build."""
    return "this build of flash-attn 2.8.3 lacks" in finding and "attn_implementation=" in finding

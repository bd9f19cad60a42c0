"""Cases for ATN221."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def machine(torch: str, cudnn: str, capability: tuple[int, int] = (9, 0)) -> Snapshot:
    """Return a machine without flash-attn, with this torch and cuDNN."""
    bare = s.without(s.gpus(s.h200(), capability), "flash-attn")
    changed = s.torch(bare, version=torch, cuda=s.Known("13.0"), cudnn=s.Known(cudnn))
    return s.torch(changed, sdpa_switches=s.Known({"CUDNN_ATTENTION": True}))


BAD = machine("2.13.0+cu130", "9.20.0")
WITH_FLASH = s.imported(s.package(BAD, "flash-attn", "2.8.3"), "flash_attn", "ok")

FIRES = {
    "torch 2.11, the first": machine("2.11.0+cu130", "9.19.0"),
    "torch 2.13": BAD,
    "flash-attn is broken": s.imported(WITH_FLASH, "flash_attn", "raised", message="undefined symbol"),
    "the model asks for sdpa": s.model(WITH_FLASH, attn_implementation=s.Known("sdpa")),
    "the old variable does nothing": s.env(BAD, TORCH_CUDNN_SDPA_ENABLED="0"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "torch 2.10": machine("2.10.0+cu130", "9.15.1"),
    "torch 2.14: not known": machine("2.14.0+cu130", "9.26.0"),
    "cuDNN that torch does not prefer": machine("2.11.0+cu126", "9.10.2"),
    "A100": machine("2.13.0+cu130", "9.20.0", (8, 0)),
    "B200": machine("2.13.0+cu130", "9.20.0", (10, 0)),
    "deprioritised": s.env(BAD, TORCH_CUDNN_SDPA_DEPRIORITIZED="1"),
    "switched off": s.torch(BAD, sdpa_switches=s.Known({"CUDNN_ATTENTION": False})),
    "flash-attn works": WITH_FLASH,
    "the model asks for flash": s.model(BAD, attn_implementation=s.Known("flash_attention_2")),
    "no GPU": replace(BAD, devices=s.Absent("no GPU")),
}


def says(finding: str) -> bool:
    """Say whether the finding's text holds the switch that torch reads."""
    return "export TORCH_CUDNN_SDPA_DEPRIORITIZED=1" in finding

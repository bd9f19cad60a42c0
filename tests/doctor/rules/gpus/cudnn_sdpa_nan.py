"""Cases for ATN221."""

from dataclasses import replace

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_torch_and_cudnn(torch: str, cudnn: str, capability: tuple[int, int] = (9, 0)) -> Snapshot:
    """Return a machine without flash-attn, with this torch and cuDNN."""
    machine = s.without_packages(s.with_gpus(s.h200(), capability), "flash-attn")
    updated = s.with_torch(machine, version=torch, cuda=s.Known("13.0"), cudnn=s.Known(cudnn))
    return s.with_torch(updated, sdpa_switches=s.Known({"CUDNN_ATTENTION": True}))


AFFECTED = with_torch_and_cudnn("2.13.0+cu130", "9.20.0")
WITH_FLASH = s.with_import(s.with_package(AFFECTED, "flash-attn", "2.8.3"), "flash_attn", "ok")

FIRES = {
    "torch 2.11, the first": with_torch_and_cudnn("2.11.0+cu130", "9.19.0"),
    "torch 2.13": AFFECTED,
    "flash-attn is broken": s.with_import(WITH_FLASH, "flash_attn", "raised", message="undefined symbol"),
    "the model requests sdpa": s.with_model(WITH_FLASH, attn_implementation=s.Known("sdpa")),
    "the old variable does nothing": s.with_env(AFFECTED, TORCH_CUDNN_SDPA_ENABLED="0"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "a machine without a GPU": s.laptop(),
    "torch 2.10": with_torch_and_cudnn("2.10.0+cu130", "9.15.1"),
    "torch 2.14: not known": with_torch_and_cudnn("2.14.0+cu130", "9.26.0"),
    "cuDNN that torch does not prefer": with_torch_and_cudnn("2.11.0+cu126", "9.10.2"),
    "A100": with_torch_and_cudnn("2.13.0+cu130", "9.20.0", (8, 0)),
    "B200": with_torch_and_cudnn("2.13.0+cu130", "9.20.0", (10, 0)),
    "deprioritised": s.with_env(AFFECTED, TORCH_CUDNN_SDPA_DEPRIORITIZED="1"),
    "switched off": s.with_torch(AFFECTED, sdpa_switches=s.Known({"CUDNN_ATTENTION": False})),
    "flash-attn works": WITH_FLASH,
    "the model requests flash": s.with_model(AFFECTED, attn_implementation=s.Known("flash_attention_2")),
    "no GPU": replace(AFFECTED, devices=s.Absent("no GPU")),
}


def says(finding: str) -> bool:
    """Return whether the finding's text holds the switch that torch reads."""
    return "export TORCH_CUDNN_SDPA_DEPRIORITIZED=1" in finding

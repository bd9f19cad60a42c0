"""How ranks find each other: who has come, what each is made of, and the group they compute in."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

PACKAGES = ("flash-attn", "ring-flash-attn", "transformers")
# What changes how ranks talk or compute; values of others are nobody's business.
VARIABLES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC")
PLACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")  # may differ from host to host for good reasons
COLLECTIVE_SECONDS = 60.0  # beyond an item's own deadline: attncheck's comes first, and knows more


class NotMet(Exception):
    """Some ranks did not come; the message names them."""


def meet(
    kind: str, rank: int, world_size: int, seconds: float, item_seconds: float, sequence: int
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return the context-parallel group over all ranks, their store, and every rank's facts. Raises `NotMet`.

    The facts go through the store, before any collective: ranks that cannot talk can still be compared.
    """
    began = time.monotonic()
    store = _store(rank, sequence, seconds)
    store.set(f"facts/{rank}", json.dumps(facts(kind, rank)))
    missing = _missing(store, world_size, began + seconds)
    if missing:
        named = ", ".join(map(str, missing[:8]))
        raise NotMet(f"after {seconds:g} s rank{'s' * (len(missing) > 1)} {named} of {world_size} had not come")
    found = [json.loads(store.get(f"facts/{other}")) for other in range(world_size)]
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=item_seconds + COLLECTIVE_SECONDS),
    )
    return dist.new_group(list(range(world_size))), store, found


def _store(rank: int, sequence: int, seconds: float) -> Any:
    """Return the ranks' store: the elastic agent's where it lends its own, else one that rank 0 opens.

    Not by init_process_group's env://, whose store waits for all ranks and cannot say which is missing. `sequence`
    tells the groups apart that one process of a launcher outside starts one after another.
    """
    lent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + (0 if lent else sequence)
    opens = rank == 0 and not lent
    try:
        store = TCPStore(host, port, is_master=opens, timeout=timedelta(seconds=seconds), wait_for_workers=False)
    except Exception as error:
        said = f"cannot be opened ({error})" if opens else f"has not answered within {seconds:g} s"
        raise NotMet(f"the store of rank 0 at {host}:{port} {said}") from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attncheck/{attempt}/{sequence}", store)


def _missing(store: Any, world_size: int, until: float) -> list[int]:
    """Return the ranks whose facts have not come by `until` (time.monotonic())."""
    missing = list(range(world_size))
    while missing and time.monotonic() < until:
        missing = [rank for rank in missing if not store.check([f"facts/{rank}"])]
        time.sleep(0.02 if missing else 0.0)
    return missing


def facts(kind: str, rank: int) -> dict[str, Any]:
    """Return what this rank is made of: versions, device, driver and the settings that must agree."""
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    found = {
        "rank": rank,
        "node": int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0"))),
        "host": socket.gethostname(),  # compared, never reported
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "packages": versions,
        "environ": {name: value for name, value in sorted(os.environ.items()) if _told(name)},
        "device": "CPU",
        "nccl": "",
        "driver": "",
    }
    if kind == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["bus"], found["gpu"] = _place()
        with suppress(Exception):
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        with suppress(OSError):
            found["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    return found


def _place() -> tuple[str, int]:
    """Return our GPU's PCI address, and its number among those we see in bus order, as nvidia-smi counts."""
    seen = [_address(index) for index in range(torch.cuda.device_count())]
    mine = seen[torch.cuda.current_device()]
    return mine, sorted(seen).index(mine)


def _address(index: int) -> str:
    properties: Any = torch.cuda.get_device_properties(index)
    if not hasattr(properties, "pci_bus_id"):
        return str(getattr(properties, "uuid", ""))
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"


def _told(name: str) -> bool:
    return name.startswith(VARIABLES) and name not in PLACES

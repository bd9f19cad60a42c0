"""Lets ranks meet: waits for all, and exchanges their versions, settings and process group."""

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
# Settings that change how ranks communicate or compute; the values of all other variables stay private.
REPORTED_VARIABLES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC")
# These may differ from host to host for good reasons.
PER_HOST_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")
# added to an item's own deadline, so that attncheck's deadline, which knows more, comes first
COLLECTIVE_SECONDS = 60.0


class RendezvousFailed(Exception):
    """Some ranks did not arrive; the message names them."""


def rendezvous(
    kind: str, rank: int, world_size: int, seconds: float, item_seconds: float, sequence: int
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return the context-parallel group over all ranks, their store, and every rank's facts.

    The facts go through the store, before any collective, so that ranks that cannot communicate can still be compared.
    Raises `RendezvousFailed`.
    """
    began = time.monotonic()
    store = _open_store(rank, sequence, seconds)
    store.set(f"facts/{rank}", json.dumps(collect_facts(kind, rank)))
    missing = _wait_for_facts(store, world_size, began + seconds)
    if missing:
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:8]))}"
        raise RendezvousFailed(f"after {seconds:g} s {ranks} of {world_size} had not joined")
    all_facts = [json.loads(store.get(f"facts/{other}")) for other in range(world_size)]
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=item_seconds + COLLECTIVE_SECONDS),
    )
    return dist.new_group(list(range(world_size))), store, all_facts


def _open_store(rank: int, sequence: int, seconds: float) -> Any:
    """Return the ranks' store: the elastic agent's if it can be shared, otherwise one that rank 0 opens.

    init_process_group's env:// is not used: its store waits for all ranks and cannot tell which is missing. `sequence`
    distinguishes the groups that one process of an external launcher starts one after another.
    """
    agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + (0 if agent_store else sequence)
    is_master = rank == 0 and not agent_store
    try:
        store = TCPStore(host, port, is_master=is_master, timeout=timedelta(seconds=seconds), wait_for_workers=False)
    except Exception as error:
        problem = f"cannot be opened ({error})" if is_master else f"has not answered within {seconds:g} s"
        raise RendezvousFailed(f"the store of rank 0 at {host}:{port} {problem}") from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attncheck/{attempt}/{sequence}", store)


def _wait_for_facts(store: Any, world_size: int, until: float) -> list[int]:
    """Return the ranks whose facts are not in the store by `until` (time.monotonic())."""
    missing = list(range(world_size))
    while missing and time.monotonic() < until:
        missing = [rank for rank in missing if not store.check([f"facts/{rank}"])]
        time.sleep(0.02 if missing else 0.0)
    return missing


def collect_facts(kind: str, rank: int) -> dict[str, Any]:
    """Return the facts of this rank: versions, device, driver and the settings that must agree between ranks."""
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    document = {
        "rank": rank,
        "node": int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0"))),
        "host": socket.gethostname(),  # compared, never reported
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "packages": versions,
        "environ": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(REPORTED_VARIABLES) and name not in PER_HOST_VARIABLES
        },
        "device": "CPU",
        "nccl": "",
        "driver": "",
    }
    if kind == "cuda":
        document["device"] = torch.cuda.get_device_name()
        document["bus"], document["gpu"] = _locate_gpu()
        with suppress(Exception):
            document["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        with suppress(OSError):
            document["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    return document


def _locate_gpu() -> tuple[str, int]:
    """Return this rank's GPU: its PCI address, and its number among the visible ones in bus order, as in nvidia-smi."""
    addresses = [_pci_address(index) for index in range(torch.cuda.device_count())]
    address = addresses[torch.cuda.current_device()]
    return address, sorted(addresses).index(address)


def _pci_address(index: int) -> str:
    properties: Any = torch.cuda.get_device_properties(index)
    if not hasattr(properties, "pci_bus_id"):
        return str(getattr(properties, "uuid", ""))
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"

"""nvidia-smi's output, damaged ten thousand times: no parser raises, hangs, or invents an impossible answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.devices import Device, Topology
from attncheck.doctor.probes.payload.gpus import nvidia_text, visible_devices
from tests.doctor import fake_nvidia_smi

ROUNDS = 10_000
SEED = 20261121
FRAGMENTS = (
    ",",
    "\t",
    "\n",
    " ",
    "GPU",
    "GPU0",
    "GPU999",
    "NV18",
    "\x1b[4m",
    "[N/A]",
    "9.0",
    "999999999999999999",
    "\u0663",
    "-1",
)


def damage(text: str, rng: random.Random) -> str:
    """Return `text` after one to six cuts, doublings, swaps and insertions."""
    for _ in range(rng.randint(1, 6)):
        first, second = sorted(rng.randint(0, len(text)) for _ in range(2))
        second = min(second, first + 200)
        kind = rng.randint(0, 4)
        if kind == 0:
            text = text[:first] + text[second:]
        elif kind == 1:
            text = text[:second] + text[first:]
        elif kind == 2:
            text = text[:first] + rng.choice(FRAGMENTS) + text[first:]
        elif kind == 3:
            text = (
                text[:first]
                + chr(rng.choice((0, 9, 10, 13, 44, 58, 0x85, 0x2028, 0xFFFD, 0x1F600)))
                + text[first + 1 :]
            )
        else:
            text = text[:first]
    return text


def assert_gpus_valid(gpus: list[dict[str, Any]]) -> None:
    for gpu in gpus:
        device = codec.read(Device, gpu)
        assert 0 <= device.index < nvidia_text.MAX_GPUS and device.name
    assert len({gpu["index"] for gpu in gpus}) == len(gpus)


def assert_topology_valid(document: dict[str, Any]) -> None:
    topology = codec.read(Topology, document)
    assert len(topology.numa_nodes) <= nvidia_text.MAX_GPUS
    for link in topology.links:
        assert 0 <= link.first < link.second < nvidia_text.MAX_GPUS


def assert_header_valid(header: dict[str, Any]) -> None:
    assert set(header) == {"version", "cuda", "fabric"}
    assert all(len(value) < 100 for value in header.values())


PARSERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...], Callable[[Any], None]]] = {
    "gpus": (nvidia_text.parse_gpus, (fake_nvidia_smi.eight_gpus_csv(), fake_nvidia_smi.H200_CSV), assert_gpus_valid),
    "topology": (
        nvidia_text.parse_topology,
        (fake_nvidia_smi.nvswitch_topology(4, 2), fake_nvidia_smi.pcie_topology(), fake_nvidia_smi.ONE_GPU_TOPOLOGY),
        assert_topology_valid,
    ),
    "header": (nvidia_text.parse_header, (fake_nvidia_smi.HEADER, fake_nvidia_smi.BANNER_610), assert_header_valid),
}


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_text(name: str) -> None:
    parse, texts, assert_valid = PARSERS[name]
    rng = random.Random(SEED)
    for _ in range(ROUNDS):
        assert_valid(parse(damage(rng.choice(texts), rng)))


@pytest.mark.parametrize(
    "unit", [" ", "\t", "GPU0\t", "GPU0  ", "0, ", "Fabric\n", "Fabric \n ", "CUDA Version ", ":", "\x1b["]
)
def test_long_runs_take_no_more_than_linear_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    begin = time.process_time()
    for parse, *_ in PARSERS.values():
        parse(text)
    nvidia_text.parse_mig(text)
    assert time.process_time() - begin < 60  # a second on an idle machine; what is quadratic takes hours


def test_damaged_visibility() -> None:
    rng = random.Random(SEED)
    uuids = [f"GPU-{index}" for index in range(8)]
    for _ in range(ROUNDS):
        setting = damage("0,1,GPU-3,MIG-7,-1, 5", rng)
        positions = visible_devices.visible_positions(setting, uuids, {"MIG-7": 3})
        assert len(set(positions)) == len(positions) and all(0 <= position < 8 for position in positions)

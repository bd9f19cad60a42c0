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
from tests.doctor import fake_nvidia_smi as fake

COUNT = 10_000
SEED = 20261121
PIECES = (
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


def damaged(text: str, chance: random.Random) -> str:
    """Return `text` after one to six cuts, doublings, swaps and insertions."""
    for _ in range(chance.randint(1, 6)):
        first, second = sorted(chance.randint(0, len(text)) for _ in range(2))
        second = min(second, first + 200)
        what = chance.randint(0, 4)
        if what == 0:
            text = text[:first] + text[second:]
        elif what == 1:
            text = text[:second] + text[first:]
        elif what == 2:
            text = text[:first] + chance.choice(PIECES) + text[first:]
        elif what == 3:
            text = (
                text[:first]
                + chr(chance.choice((0, 9, 10, 13, 44, 58, 0x85, 0x2028, 0xFFFD, 0x1F600)))
                + text[first + 1 :]
            )
        else:
            text = text[:first]
    return text


def gpus_hold(found: list[dict[str, Any]]) -> None:
    for gpu in found:
        device = codec.read(Device, gpu)
        assert 0 <= device.index < nvidia_text.MOST_GPUS and device.name
    assert len({gpu["index"] for gpu in found}) == len(found)


def topology_holds(found: dict[str, Any]) -> None:
    topology = codec.read(Topology, found)
    assert len(topology.numa_nodes) <= nvidia_text.MOST_GPUS
    for link in topology.links:
        assert 0 <= link.first < link.second < nvidia_text.MOST_GPUS


def header_holds(found: dict[str, Any]) -> None:
    assert set(found) == {"version", "cuda", "fabric"}
    assert all(len(value) < 100 for value in found.values())


PARSERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...], Callable[[Any], None]]] = {
    "gpus": (nvidia_text.parse_gpus, (fake.eight_gpus(), fake.H200), gpus_hold),
    "topology": (nvidia_text.parse_topology, (fake.switched(4, 2), fake.pcie(), fake.ONE), topology_holds),
    "header": (nvidia_text.parse_header, (fake.HEADER, fake.BANNER_610), header_holds),
}


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_text(name: str) -> None:
    parse, texts, hold = PARSERS[name]
    chance = random.Random(SEED)
    begin = time.monotonic()
    for _ in range(COUNT):
        hold(parse(damaged(chance.choice(texts), chance)))
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    "unit", [" ", "\t", "GPU0\t", "GPU0  ", "0, ", "Fabric\n", "Fabric \n ", "CUDA Version ", ":", "\x1b["]
)
def test_long_runs_take_no_more_than_linear_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    begin = time.process_time()
    for parse, *_ in PARSERS.values():
        parse(text)
    nvidia_text.parse_mig(text)
    assert time.process_time() - begin < 3


def test_damaged_visibility() -> None:
    chance = random.Random(SEED)
    uuids = [f"GPU-{index}" for index in range(8)]
    for _ in range(COUNT):
        setting = damaged("0,1,GPU-3,MIG-7,-1, 5", chance)
        found = visible_devices.order(setting, uuids, {"MIG-7": 3})
        assert len(set(found)) == len(found) and all(0 <= position < 8 for position in found)

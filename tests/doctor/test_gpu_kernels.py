"""The tiny kernel's mapping and words, against a torch that is made up; the kernel itself runs in the GPU tests."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.doctor.probes.payload.gpus import kernels


def made_up(count: int, addresses: list[tuple[int, int, int]] | None = None, reach: bool = True) -> Any:
    """Return a torch that sees `count` GPUs, at these PCI addresses where it tells them."""

    def properties(ordinal: int) -> Any:
        if addresses is None:
            return SimpleNamespace()
        domain, bus, device = addresses[ordinal]
        return SimpleNamespace(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device)

    def access(first: int, second: int) -> bool:
        if not reach and first == 1:
            raise RuntimeError("CUDA error: invalid device ordinal\nCompile with `TORCH_USE_CUDA_DSA`")
        return reach

    cuda = SimpleNamespace(device_count=lambda: count, get_device_properties=properties, can_device_access_peer=access)
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, [0, 1]), ("3,1", [3, 1]), ("GPU-aa,GPU-bb", [0, 1]), ("2,5,7", [2, 5]), ("", [0, 1])],
)
def test_places_by_setting(monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: list[int]) -> None:
    monkeypatch.setattr(kernels, "_PCI", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert kernels._places(made_up(2)) == expected


def test_places_by_pci_address_go_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for entry in ("0000:1b:00.0", "0000:9d:00.0", "0001:03:00.0"):
        (tmp_path / entry).mkdir()
    monkeypatch.setattr(kernels, "_PCI", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert kernels._places(made_up(2, [(1, 3, 0), (0, 0x1B, 0)])) == [2, 0]


def test_peers_are_named_as_nvidia_smi_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_PCI", "/nowhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setitem(sys.modules, "torch", made_up(2))
    assert kernels.peers() == {"peers": {"1-3": {"known": True}}}
    monkeypatch.setitem(sys.modules, "torch", made_up(2, reach=False))
    assert kernels.peers() == {"peers": {"1-3": {"unreadable": "RuntimeError: CUDA error: invalid device ordinal"}}}


def test_a_failing_kernel_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_PCI", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch", made_up(1))
    answer = kernels.run_one(0)  # the made-up torch has no tensors
    assert "known" in answer["devices"]["0"] and answer["devices"]["0"]["known"] != "ok"
    assert "unreadable" in answer["free"]["0"]


def test_a_hidden_gpu_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", made_up(1))
    assert kernels.run_one(1) == {"devices": {}, "free": {}}


def test_merge() -> None:
    whole = kernels.merge([{"devices": {"0": {"known": "ok"}}}, kernels.died(1, "it hung"), {"peers": {}}])
    assert whole["devices"] == {"0": {"known": "ok"}, "1": {"known": "it hung"}}

"""The tiny kernel's GPU indices and errors, against a fake torch; the kernel itself runs in the GPU tests."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.doctor.probes.payload.gpus import kernels


def make_fake_torch(count: int, addresses: list[tuple[int, int, int]] | None = None, reachable: bool = True) -> Any:
    """Return a fake torch that sees `count` GPUs, at PCI `addresses` if given."""

    def get_properties(ordinal: int) -> Any:
        if addresses is None:
            return SimpleNamespace()
        domain, bus, device = addresses[ordinal]
        return SimpleNamespace(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device)

    def can_access(first: int, second: int) -> bool:
        if not reachable and first == 1:
            raise RuntimeError("CUDA error: invalid device ordinal\nCompile with `TORCH_USE_CUDA_DSA`")
        return reachable

    cuda = SimpleNamespace(
        device_count=lambda: count, get_device_properties=get_properties, can_device_access_peer=can_access
    )
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, [0, 1]), ("3,1", [3, 1]), ("GPU-aa,GPU-bb", [0, 1]), ("2,5,7", [2, 5]), ("", [0, 1])],
)
def test_places_by_setting(monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: list[int]) -> None:
    monkeypatch.setattr(kernels, "_PROC_GPUS", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert kernels._nvidia_smi_indices(make_fake_torch(2)) == expected


def test_places_by_pci_address_go_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for entry in ("0000:1b:00.0", "0000:9d:00.0", "0001:03:00.0"):
        (tmp_path / entry).mkdir()
    monkeypatch.setattr(kernels, "_PROC_GPUS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert kernels._nvidia_smi_indices(make_fake_torch(2, [(1, 3, 0), (0, 0x1B, 0)])) == [2, 0]


def test_peers_are_named_as_nvidia_smi_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_PROC_GPUS", "/nowhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setitem(sys.modules, "torch", make_fake_torch(2))
    assert kernels.check_peer_access() == {"peers": {"1-3": {"known": True}}}
    monkeypatch.setitem(sys.modules, "torch", make_fake_torch(2, reachable=False))
    assert kernels.check_peer_access() == {
        "peers": {"1-3": {"unreadable": "RuntimeError: CUDA error: invalid device ordinal"}}
    }


def test_a_failing_kernel_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_PROC_GPUS", "/nowhere")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch", make_fake_torch(1))
    answer = kernels.run_kernel(0)  # the fake torch has no tensors
    assert "known" in answer["devices"]["0"] and answer["devices"]["0"]["known"] != "ok"
    assert "unreadable" in answer["free"]["0"]


def test_a_hidden_gpu_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", make_fake_torch(1))
    assert kernels.run_kernel(1) == {"devices": {}, "free": {}}


def test_merge() -> None:
    merged = kernels.merge_answers(
        [{"devices": {"0": {"known": "ok"}}}, kernels.failed_child_answer(1, "it hung"), {"peers": {}}]
    )
    assert merged["devices"] == {"0": {"known": "ok"}, "1": {"known": "it hung"}}

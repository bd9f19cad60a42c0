"""On a machine with a GPU: what doctor says of it is true. ATTNCHECK_REQUIRE_GPU=1 makes its absence a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from attncheck.report.schema import make_report_schema

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there is no GPU")
        pytest.skip("no GPU here")
    command = [sys.executable, "-m", "attncheck", "doctor", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_report_fits_the_schema(report: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(report, make_report_schema())
    assert report["snapshot"]["problems"] == []


def test_every_gpu_is_named_as_torch_names_it(report: dict[str, Any]) -> None:
    import torch

    devices = [device for device in report["snapshot"]["devices"]["known"] if device["visible"]]
    assert len(devices) == torch.cuda.device_count()
    for ordinal, device in enumerate(devices):
        properties = torch.cuda.get_device_properties(ordinal)
        assert device["name"] == properties.name
        assert device["compute_capability"]["known"] == [properties.major, properties.minor]
        assert device["kernel"] == {"known": "ok"}
        assert 0.9 < device["memory_total_bytes"]["known"] / properties.total_memory < 1.1


def test_the_driver_alone_runs_a_kernel_on_every_gpu(report: dict[str, Any]) -> None:
    import torch

    code = "from attncheck.doctor.probes.payload.gpus.driver import run_kernels; print(run_kernels())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str(torch.cuda.device_count()), done.stderr


def test_the_driver_and_the_links_are_told(report: dict[str, Any]) -> None:
    snapshot = report["snapshot"]
    assert snapshot["driver"]["known"]["version"][0].isdigit()
    count = len(snapshot["devices"]["known"])
    links = snapshot["topology"]["known"]["links"]
    assert len(links) == count * (count - 1) // 2
    assert all("known" in link["peer_access"] for link in links)


def test_flash_attn_is_read_and_imported(report: dict[str, Any]) -> None:
    pytest.importorskip("flash_attn")
    import torch

    binary = next(b for b in report["snapshot"]["binaries"] if b["module"] == "flash_attn_2_cuda")
    major, minor = torch.cuda.get_device_capability()
    assert any(arch.startswith(f"sm_{major}{minor}"[:5]) for arch in binary["sass"])
    assert binary["missing_symbols"] == []
    outcomes = {o["module"]: o["outcome"] for o in report["snapshot"]["imports"]["known"]}
    assert outcomes["flash_attn_2_cuda"] == outcomes["flash_attn"] == "ok"


def test_nothing_is_red_but_the_ring_import_under_this_transformers(report: dict[str, Any]) -> None:
    errors = {finding["name"] for finding in report["findings"] if finding["severity"] == "error"}
    assert errors <= {"ring-flash-attn-import", "ring-flash-attn-signature"}


def test_a_hidden_gpu_is_told() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    command = [sys.executable, "-m", "attncheck", "doctor", "--format", "json"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "99"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    names = [finding["name"] for finding in json.loads(done.stdout)["findings"]]
    assert "visible-devices-hide-gpus" in names
    assert "cuda-does-not-start" not in names, "one defect, one finding"


@pytest.mark.multigpu
def test_every_pair_of_gpus_has_a_link_and_an_answer(report: dict[str, Any]) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there are not two GPUs")
        pytest.skip("one GPU here")
    links = report["snapshot"]["topology"]["known"]["links"]
    assert links
    for link in links:
        assert link["kind"].startswith(("NV", "PIX", "PXB", "PHB", "NODE", "SYS"))
        reachable = torch.cuda.can_device_access_peer(link["first"], link["second"])
        assert link["peer_access"] == {"known": reachable}

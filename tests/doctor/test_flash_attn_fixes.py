"""The fixes for flash-attn 2 are exact for the environment, and the estimates are those that were measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.findings import Fix
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.flash_attn import (
    choose_source_version,
    find_published_wheel,
    flash_attn_fixes,
    install_flash_attn_package,
    missing_build_tools,
    plan_build,
)
from tests import snapshots as s


def make_host(torch: str, cuda: str, abi: bool = True, **host: object) -> Snapshot:
    """Return the recorded H200 host without flash-attn, with this torch and these host fields."""
    base = s.with_torch(s.h200(), version=torch, cuda=s.Known(cuda), hip=s.Absent(), cxx11_abi=s.Known(abi))
    base = s.with_build_tools(base, nvcc=s.Known(cuda), gcc=s.Known("13"), ninja=s.Known("1.13"))
    return s.with_host(s.without_packages(base, "flash-attn", "kernels"), **host)


def first_fix(snapshot: Snapshot) -> Fix:
    return flash_attn_fixes(snapshot)[0]


@pytest.mark.parametrize(
    ("torch", "cuda", "abi", "host", "expected"),
    [
        ("2.8.0+cu128", "12.8", True, {}, "v2.8.3/flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312"),
        ("2.6.0+cu124", "12.4", False, {}, "v2.8.3/flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp312"),
        ("2.4.1+cu124", "12.4", True, {"python_abi": "cp313"}, ""),
        ("2.5.1+cu124", "12.4", True, {"python_abi": "cp313"}, "v2.8.3/flash_attn-2.8.3+cu12torch2.5"),
        ("2.9.1+cu128", "12.8", True, {}, "v2.8.3/flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312"),
        ("2.9.1+cu128", "12.8", True, {"python_abi": "cp311"}, ""),
        ("2.9.1+cu128", "12.8", True, {"machine": "aarch64"}, "torch2.9cxx11abiTRUE-cp312-cp312-linux_aarch64.whl"),
        ("2.9.1+cu130", "13.0", True, {}, "v2.8.3/flash_attn-2.8.3+cu13torch2.9"),
        ("2.10.0+cu130", "13.0", True, {}, "v2.8.3/flash_attn-2.8.3+cu13torch2.10"),
        ("2.10.0+cu128", "12.8", True, {}, "v2.8.1/flash_attn-2.8.1+cu12torch2.10"),
        ("2.11.0+cu130", "13.0", True, {}, ""),
        ("2.8.0+cu128", "12.8", True, {"python_abi": "cp314"}, ""),
        ("2.8.0+cu128", "12.8", True, {"python_abi": "cp313t"}, ""),
        ("2.8.0+cu128", "12.8", True, {"platform": "win32"}, ""),
        ("2.8.0+cu128", "12.8", True, {"glibc": s.Known("2.31")}, ""),
        ("2.8.0+cu128", "12.8", True, {"glibc": s.Absent("musl")}, ""),
        ("2.6.0+cu124", "12.4", True, {"glibc": s.Known("2.31")}, "v2.7.4.post1/flash_attn-2.7.4.post1+cu12torch2.6"),
        ("2.6.0+cu124", "12.4", True, {"glibc": s.Known("2.28")}, ""),
    ],
)
def test_the_wheel(torch: str, cuda: str, abi: bool, host: dict[str, object], expected: str) -> None:
    wheel = find_published_wheel(make_host(torch, cuda, abi, **host))
    assert (expected in wheel.url) if expected and wheel else wheel is None and not expected


def test_a_wheel_is_installed_alone_and_over_what_is_there() -> None:
    fix = first_fix(make_host("2.8.0+cu128", "12.8"))
    assert "--no-deps" in fix.text and "--force-reinstall" not in fix.text and fix.safety == "safe"
    over = first_fix(s.with_package(make_host("2.8.0+cu128", "12.8"), "flash-attn", "2.8.3"))
    assert "--force-reinstall" in over.text


def test_einops_comes_along_where_it_is_missing() -> None:
    assert first_fix(s.without_packages(make_host("2.8.0+cu128", "12.8"), "einops")).text.endswith(" einops")


def test_einops_comes_along_where_no_wheel_can_be_named() -> None:
    """ATN142's fix left einops out if torch's ABI is not known, and the import failed next for want of it."""
    unknown = replace(make_host("2.8.0+cu128", "12.8"), torch=s.Absent("torch was not found"))
    [fix] = install_flash_attn_package(s.without_packages(unknown, "einops"))
    assert fix.text.endswith(" einops") and "--no-deps" in fix.text


def test_a_pin_decides_which_wheel() -> None:
    pinned = s.with_package(make_host("2.6.0+cu124", "12.4"), "framework", "1", requires=("flash-attn<2.8",))
    wheel = find_published_wheel(pinned)
    assert wheel is not None and wheel.version == "2.7.4.post1"


def test_a_build_names_jobs_architectures_and_time() -> None:
    fix = first_fix(make_host("2.11.0+cu130", "13.0", cpu_count=16, memory_available_bytes=s.Known(125 << 30)))
    assert "MAX_JOBS=16 NVCC_THREADS=1 FLASH_ATTN_CUDA_ARCHS=90" in fix.text
    assert "flash-attn==2.8.3.post2" in fix.text and "--no-build-isolation" in fix.text and "--no-cache-dir" in fix.text
    assert "about 15 minutes with 16 jobs" in fix.title


def test_the_estimate_is_what_was_measured() -> None:
    host = make_host("2.11.0+cu130", "13.0", cpu_count=128, memory_available_bytes=s.Known(560 << 30))
    assert plan_build(host).seconds == pytest.approx(445, rel=0.15)  # a full sm_90 build of 2.8.3 on 128 cores


def test_memory_bounds_the_jobs_and_every_gpu_counts() -> None:
    small = s.with_gpus(
        make_host("2.11.0+cu128", "12.8", memory_available_bytes=s.Known(15 << 30)), (8, 6), (8, 9), (9, 0)
    )
    assert plan_build(small).jobs == 2
    assert plan_build(small).architectures == ("80", "90")
    assert "FLASH_ATTN_CUDA_ARCHS='80;90'" in first_fix(small).text
    assert "hours" in first_fix(small).title


def test_a_pinned_release_under_cuda_13_is_kept_from_taking_a_cuda_12_wheel() -> None:
    pinned = s.with_package(make_host("2.11.0+cu130", "13.0"), "openrlhf", "0.11.2", requires=("flash-attn==2.8.3",))
    assert choose_source_version(pinned) == "2.8.3"
    assert "FLASH_ATTENTION_FORCE_BUILD=TRUE" in first_fix(pinned).text
    assert "FORCE_BUILD" not in first_fix(make_host("2.11.0+cu130", "13.0")).text


def test_no_release_compiles_against_torch_2_14() -> None:
    assert "git+https://github.com/Dao-AILab/flash-attention" in first_fix(make_host("2.14.0+cu130", "13.0")).text
    assert "git+" not in first_fix(make_host("2.13.0+cu130", "13.0")).text


def test_what_needs_no_compiler_comes_first_where_there_is_none() -> None:
    bare = s.with_build_tools(make_host("2.11.0+cu130", "13.0"), nvcc=s.Absent("no CUDA toolkit"))
    fixes = flash_attn_fixes(bare)
    assert fixes[0].kind == "setting" and "first install nvcc of CUDA 13" in fixes[-1].title
    assert missing_build_tools(s.with_build_tools(bare, nvcc=s.Known("12.9"))) == (
        "nvcc of CUDA 13 (nvcc here is 12.9)",
    )


@pytest.mark.parametrize(("kernels", "offered"), [("0.16.0", True), ("0.15.2", False), ("0.17.0", False)])
def test_the_hub_kernel_is_offered_where_the_pair_loads_it(kernels: str, offered: bool) -> None:
    pair = s.with_package(
        s.with_package(make_host("2.11.0+cu130", "13.0"), "transformers", "5.17.0"), "kernels", kernels
    )
    texts = str(flash_attn_fixes(replace(pair, hub=replace(pair.hub, offline=False))))
    assert ("kernels-community/flash-attn2" in texts) is offered
    assert "kernels-community" not in str(flash_attn_fixes(replace(pair, hub=replace(pair.hub, offline=True))))


def test_a_cpu_torch_gets_a_cuda_torch_where_there_is_a_gpu() -> None:
    cpu = s.with_torch(s.h200(), version="2.11.0+cpu", cuda=s.Absent("CPU"), hip=s.Absent("no"))
    assert "--index-url https://download.pytorch.org/whl/cu130 torch==2.11.0+cu130" in first_fix(cpu).text
    old = s.with_driver(cpu, version="550.54.15")
    assert "torch==2.11.0+cu129" in first_fix(old).text
    assert first_fix(s.with_gpus(cpu)).kind == "setting"

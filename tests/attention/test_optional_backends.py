"""Backends of packages that need a GPU, called on the CPU through stand-ins with the releases' own signatures."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attncheck.attention import backends as backend_modules  # noqa: E402
from attncheck.attention.backend import Backend, Device, Refused  # noqa: E402
from attncheck.attention.backends import (  # noqa: E402
    flash_attention_2,
    flash_attention_3,
    flash_attention_4,
    load,
    xformers_cutlass,
    xformers_flash,
)
from attncheck.attention.calls import flash_attn, hub_kernels  # noqa: E402
from attncheck.attention.inputs import make_inputs  # noqa: E402
from attncheck.attention.reference.oracle import compute_reference  # noqa: E402
from attncheck.attention.reference.score import score_outputs  # noqa: E402
from attncheck.core.cases import Case, with_name  # noqa: E402
from attncheck.core.verdicts import Run, judge_run  # noqa: E402
from tests.attention import optional_stubs as stubs  # noqa: E402

NAMES = (
    "flash_attention_3",
    "flash_attention_3_varlen",
    "flash_attention_4",
    "flash_attention_4_varlen",
    "hub_flash_attn_2",
    "hub_flash_attn_3",
    "hub_vllm_flash_attn_3",
    "xformers_cutlass",
    "xformers_flash",
)
BACKENDS: dict[str, Backend] = {name: load()[0][name] for name in NAMES}
LOAD = hub_kernels.load
HOPPER = Device("cuda", "H200", (9, 0), (2, 11))
PLAIN = Case("test", (150, 150), (150, 150), num_kv_heads=2)
CASES = (
    PLAIN,
    replace(PLAIN, causal=False),
    Case("test", (70,), (150,)),
    Case("test", (70,), (150,), causal=False),
    Case("test", (150,), (150,), window_size=(32, 0)),
    Case("test", (150,), (150,), window_size=(32, -1)),
    Case("test", (150,), (150,), window_size=(32, 16), causal=False),
    Case("test", (70,), (150,), window_size=(32, 0), backward=False),
    Case("test", (150,), (150,), softcap=20.0, values="large"),
    Case("test", (150, 33, 1), (150, 33, 1), layout="right_padded", num_kv_heads=1),
    Case("test", (150, 33, 1), (150, 33, 1), layout="left_padded"),
    Case("test", (90, 0, 33, 1), (90, 0, 33, 1), layout="packed", num_kv_heads=2),
    Case("test", (33, 90), (70, 90), layout="packed"),
    Case("test", (90, 33), (90, 33), layout="packed", window_size=(16, 0)),
    Case("test", (150,), (150,), sinks=True),
    Case("test", (90, 33), (90, 33), layout="packed", sinks=True),
    Case("test", (150,), (150,), head_dim=192, v_head_dim=128),
    Case("test", (150,), (150,), alibi=True),
    Case("test", (70,), (70,), strides="expanded", num_kv_heads=2),
    Case("test", (70,), (70,), strides="transposed", dtype="float16"),
    Case("test", (70,), (70,), backward=False),
    Case("test", (150,), (70,), alignment="top_left"),
)


@pytest.fixture(autouse=True)
def _stub_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    stubs.CALLS.clear()
    modules = {
        "flash_attn": ModuleType("flash_attn"),
        "flash_attn_interface": stubs.fa3_main(),
        **stubs.xformers_modules(),
    }
    modules["flash_attn.cute"] = stubs.fa4()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    kernels = {
        flash_attention_2.HUB: stubs.fa2_hub(),
        flash_attention_3.HUB: stubs.fa3_main("flash_attn3"),
        flash_attention_3.VLLM_HUB: stubs.fa3_vllm(),
    }
    monkeypatch.setattr(hub_kernels, "load", kernels.__getitem__)


def judge_backend(backend: Backend, case: Case) -> str:
    inputs = make_inputs(case, "cpu")
    outputs = backend.run(inputs, False)
    tensor_scores = score_outputs(outputs, compute_reference(inputs, backend.noise, backend.rounded_bias))
    expected = {"out", "dq", "dk", "dv"} if case.backward else {"out"}
    assert expected <= {score.tensor for score in tensor_scores}
    verdict = judge_run(Run(backend.name, case, "ok", scores=tuple(tensor_scores)))
    return "pass" if verdict.answer == "pass" else f"{verdict.answer}: {verdict.reason}"


def accepted_params() -> list[Any]:
    pairs = [(backend, with_name(case)) for backend in BACKENDS.values() for case in CASES]
    runs = [(backend, case) for backend, case in pairs if not backend.refuse(case, HOPPER)]
    return [pytest.param(backend, case, id=f"{backend.name}-{case.name}") for backend, case in runs]


@pytest.mark.parametrize(("backend", "case"), accepted_params())
def test_a_case_that_is_not_refused_is_called_as_it_is_meant(backend: Backend, case: Case) -> None:
    assert judge_backend(backend, case) == "pass"


def test_every_kind_of_case_reaches_the_backends_that_can_run_it() -> None:
    reached = {name: sum(not backend.refuse(case, HOPPER) for case in CASES) for name, backend in BACKENDS.items()}
    assert reached == {
        "flash_attention_3": 13,
        "flash_attention_3_varlen": 18,
        "flash_attention_4": 14,
        "flash_attention_4_varlen": 20,
        "hub_flash_attn_2": 18,
        "hub_flash_attn_3": 18,
        "hub_vllm_flash_attn_3": 19,
        "xformers_cutlass": 18,
        "xformers_flash": 16,
    }


def returns_lse(backend: Backend, case: Case) -> bool:
    return backend.run(make_inputs(case, "cpu"), False).lse is not None


@pytest.mark.parametrize("backend", [b for b in BACKENDS.values() if b is not BACKENDS["hub_vllm_flash_attn_3"]])
def test_lse_is_compared_where_the_call_returns_it(backend: Backend) -> None:
    assert returns_lse(backend, PLAIN)


def test_sinks_are_values_that_bfloat16_holds_so_that_every_lse_can_be_compared() -> None:
    case = Case("test", (70,), (70,), sinks=True)
    assert returns_lse(BACKENDS["hub_vllm_flash_attn_3"], case)
    assert returns_lse(BACKENDS["flash_attention_4"], case)


def test_sinks_get_their_gradient_where_the_kernel_gives_one() -> None:
    case = Case("test", (70,), (70,), sinks=True)
    assert BACKENDS["flash_attention_4"].run(make_inputs(case, "cpu"), False).dsinks is not None
    assert BACKENDS["hub_vllm_flash_attn_3"].run(make_inputs(case, "cpu"), False).dsinks is None


def test_the_arguments_are_the_ones_of_the_release() -> None:
    case = Case("test", (70,), (70,), window_size=(32, -1), softcap=20.0)
    BACKENDS["flash_attention_3"].run(make_inputs(case, "cpu"), True)
    BACKENDS["flash_attention_4"].run(make_inputs(case, "cpu"), True)
    three, four = stubs.CALLS
    assert three["window_size"] == (32, -1)
    assert four["window_size"] == (32, None)
    for arguments in (three, four):
        assert arguments["softcap"] == 20.0
        assert arguments["softmax_scale"] == 0.125
        assert arguments["causal"] is arguments["deterministic"] is True


# --- releases


@pytest.mark.parametrize("with_lse", [True, False])
@pytest.mark.parametrize("backend", [BACKENDS["flash_attention_3"], BACKENDS["flash_attention_3_varlen"]])
def test_flash_attention_3_returns_lse_or_does_not(
    backend: Backend, with_lse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", stubs.fa3_v28(with_lse))
    assert judge_backend(backend, with_name(PLAIN)) == "pass"
    assert returns_lse(backend, PLAIN) == with_lse


@pytest.mark.parametrize("backend", [BACKENDS["flash_attention_3"], BACKENDS["flash_attention_3_varlen"]])
def test_what_an_old_release_lacks_is_refused_by_name(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", stubs.fa3_v27())
    assert judge_backend(backend, with_name(PLAIN)) == "pass"
    with pytest.raises(Refused, match="this release of FlashAttention-3 has no argument softcap"):
        backend.run(make_inputs(replace(PLAIN, softcap=20.0), "cpu"), False)


def test_what_a_function_itself_cannot_do_is_a_refusal() -> None:
    case = Case("test", (70,), (70,), head_dim=256, v_head_dim=256)
    with pytest.raises(Refused, match="FlashAttention-3: Deterministic backward not supported for hdim 256"):
        BACKENDS["flash_attention_3"].run(make_inputs(case, "cpu"), True)
    assert BACKENDS["flash_attention_3"].run(make_inputs(case, "cpu"), False).dq is not None


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (AssertionError("deterministic backward not supported on SM 12.0"), True),
        (NotImplementedError("no backward"), True),
        (RuntimeError("This flash attention build does not support local attention."), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("v must have shape (batch_size, seqlen_k, num_heads_k, head_size)"), False),
        (AssertionError(), False),
        (TypeError("flash_attn_func() got an unexpected keyword argument"), False),
    ],
)
def test_only_an_admitted_limit_is_a_refusal(error: Exception, refused: bool) -> None:
    with pytest.raises(Refused if refused else type(error)), flash_attn.limits_as_refusals("it"):
        raise error


def test_arguments_that_change_nothing_are_left_out() -> None:
    def function(q: int, causal: bool = False) -> None: ...

    idle = {"window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None, "deterministic": False, "return_lse": True}
    assert flash_attn.supported_kwargs(function, "it", causal=True, **idle) == {"causal": True}
    for name, value in (("window_size", (0, 0)), ("softcap", 1.0), ("deterministic", True), ("sinks", torch.zeros(2))):
        with pytest.raises(Refused, match=name):
            flash_attn.supported_kwargs(function, "it", **{name: value})


# --- refusals


def make_gpu(major: int, minor: int = 0) -> Device:
    return Device("cuda", "GPU", (major, minor), (2, 11))


SHORT = Case("test", (70,), (70,))


def with_head_dim(size: int, v_size: int = 0, **changes: Any) -> Case:
    return replace(SHORT, head_dim=size, v_head_dim=v_size or size, **changes)


@pytest.mark.parametrize(
    ("name", "case", "device", "expected"),
    [
        ("flash_attention_3", SHORT, Device("cpu"), "CUDA only"),
        ("flash_attention_3", SHORT, make_gpu(7, 5), "needs sm_80"),
        ("flash_attention_3", SHORT, make_gpu(8), ""),
        ("flash_attention_3", SHORT, make_gpu(8, 9), ""),
        ("flash_attention_3", SHORT, make_gpu(9), ""),
        ("flash_attention_3", SHORT, make_gpu(10), "sm_80 and sm_90 only"),
        ("flash_attention_3", SHORT, make_gpu(12), "sm_80 and sm_90 only"),
        ("flash_attention_3", replace(SHORT, dtype="float32"), make_gpu(9), "16-bit"),
        ("flash_attention_3", replace(SHORT, sinks=True), make_gpu(9), "no sinks"),
        ("flash_attention_3", replace(SHORT, alibi=True), make_gpu(9), "no ALiBi"),
        ("flash_attention_3", replace(SHORT, dropout=0.1), make_gpu(9), "no dropout"),
        ("flash_attention_3", replace(SHORT, layout="packed"), make_gpu(9), "need flash_attention_3_varlen"),
        ("flash_attention_3_varlen", replace(SHORT, layout="packed"), make_gpu(9), ""),
        ("flash_attention_3", with_head_dim(256), make_gpu(9), ""),
        ("flash_attention_3", with_head_dim(264), make_gpu(9), "up to 256"),
        ("flash_attention_3", with_head_dim(36), make_gpu(9), "multiple of 8"),
        ("flash_attention_3", with_head_dim(192, 128), make_gpu(9), ""),
        ("flash_attention_3", with_head_dim(192, 128), make_gpu(8), "Hopper only"),
        ("flash_attention_3", with_head_dim(128, 64), make_gpu(9), "129 to 192"),
        ("flash_attention_3", with_head_dim(64, 256), make_gpu(9), ""),
        ("flash_attention_3", with_head_dim(64, 512), make_gpu(9), "no backward"),
        ("flash_attention_3", with_head_dim(64, 512, backward=False), make_gpu(9), ""),
        ("flash_attention_4", SHORT, make_gpu(8), "no backward on sm_8x"),
        ("flash_attention_4", replace(SHORT, backward=False), make_gpu(8), ""),
        ("flash_attention_4", replace(SHORT, backward=False, sinks=True), make_gpu(8), "no sinks on sm_8x"),
        ("flash_attention_4", replace(SHORT, sinks=True), make_gpu(9), ""),
        ("flash_attention_4", replace(SHORT, sinks=True), make_gpu(12), "no sinks on sm_12x"),
        ("flash_attention_4", SHORT, make_gpu(12), ""),
        ("flash_attention_4", replace(SHORT, softcap=20.0), make_gpu(12), "no backward with soft-cap on sm_12x"),
        ("flash_attention_4", replace(SHORT, softcap=20.0, backward=False), make_gpu(12), ""),
        ("flash_attention_4", SHORT, make_gpu(13), "up to 12.x"),
        ("flash_attention_4", with_head_dim(192), make_gpu(9), ""),
        ("flash_attention_4", with_head_dim(192), make_gpu(10), "up to 128 on Blackwell"),
        ("flash_attention_4", with_head_dim(192, 128), make_gpu(10), ""),
        ("flash_attention_4", with_head_dim(256), make_gpu(10), ""),
        ("flash_attention_4", with_head_dim(256, softcap=20.0), make_gpu(10), "no backward at a head_dim of 256"),
        ("flash_attention_4", with_head_dim(256, softcap=20.0), make_gpu(9), ""),
        ("flash_attention_4", with_head_dim(264), make_gpu(9), "8 to 256"),
        ("flash_attention_4", replace(SHORT, alibi=True), make_gpu(9), "score_mod"),
        ("flash_attention_4", replace(SHORT, layout="packed"), make_gpu(9), "need flash_attention_4_varlen"),
        ("hub_flash_attn_2", SHORT, Device("cpu"), "CUDA only"),
        ("hub_flash_attn_2", replace(SHORT, alibi=True), make_gpu(9), ""),
        ("hub_vllm_flash_attn_3", replace(SHORT, sinks=True), make_gpu(9), ""),
        ("hub_vllm_flash_attn_3", with_head_dim(192, 128), make_gpu(9), "cuts dq and dk"),
        ("hub_vllm_flash_attn_3", with_head_dim(192, 128, backward=False), make_gpu(9), ""),
        ("xformers_cutlass", replace(SHORT, dtype="float32"), make_gpu(9), ""),
        ("xformers_cutlass", SHORT, make_gpu(10), "does not support GPUs newer than sm_90"),
        ("xformers_cutlass", SHORT, make_gpu(7, 5), "bfloat16 on sm_80"),
        ("xformers_cutlass", with_head_dim(36), make_gpu(9), "multiple of 8"),
        ("xformers_cutlass", with_head_dim(36, dtype="float32"), make_gpu(9), ""),
        ("xformers_cutlass", with_head_dim(192, 128), make_gpu(9), ""),
        ("xformers_cutlass", replace(SHORT, window_size=(9, 9), causal=False), make_gpu(9), "causal windows only"),
        ("xformers_cutlass", replace(SHORT, alibi=True), make_gpu(9), ""),
        ("xformers_flash", replace(SHORT, alibi=True), make_gpu(9), "no ALiBi"),
        ("xformers_flash", with_head_dim(192, 128), make_gpu(9), "equal head_dim"),
        ("xformers_flash", with_head_dim(264), make_gpu(9), "up to 256"),
        ("xformers_flash", replace(SHORT, window_size=(9, 9), causal=False), make_gpu(9), ""),
        ("xformers_flash", replace(SHORT, window_size=(9, -1), causal=False), make_gpu(9), "both sides are bounded"),
        ("xformers_flash", replace(SHORT, softcap=20.0), make_gpu(9), "no soft-cap"),
        ("xformers_flash", replace(SHORT, seqlens_q=(70,), seqlens_k=(33,)), make_gpu(9), "at least as many keys"),
    ],
)
def test_refusals_begin_where_the_release_ends(name: str, case: Case, device: Device, expected: str) -> None:
    reason = BACKENDS[name].refuse(case, device)
    assert expected in reason if expected else not reason


def test_xformers_own_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from xformers.ops import fmha

    monkeypatch.setattr(fmha.cutlass.BwOp, "reasons", ("query.shape[-1] % 8 != 0\nmore",))
    with pytest.raises(Refused, match=r"^query"):
        xformers_cutlass.BACKEND.run(make_inputs(SHORT, "cpu"), False)
    assert xformers_cutlass.BACKEND.run(make_inputs(replace(SHORT, backward=False), "cpu"), False).dq is None


def test_xformers_without_its_library_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 0.0.35's wheel for CUDA 12 does under a torch for CUDA 13."""
    from xformers.ops import fmha

    monkeypatch.setattr(fmha.cutlass.FwOp, "reasons", ("xFormers wasn't build with CUDA support",))
    error = RuntimeError("xFormers can't load C++/CUDA extensions")
    error.__cause__ = OSError("libcudart.so.12: cannot open shared object file")
    library = ModuleType("xformers._cpp_lib")
    library.__dict__["_cpp_library_load_exception"] = error
    monkeypatch.setitem(sys.modules, "xformers._cpp_lib", library)
    monkeypatch.setattr(sys.modules["xformers"], "_cpp_lib", library, raising=False)
    expected = "CUDA support .its compiled library was not loaded: libcudart.so.12: cannot open shared object file"
    with pytest.raises(Refused, match=expected):
        xformers_cutlass.BACKEND.run(make_inputs(SHORT, "cpu"), False)


def test_xformers_operators_are_pinned() -> None:
    from xformers.ops import fmha

    xformers_flash.BACKEND.run(make_inputs(SHORT, "cpu"), False)
    assert stubs.CALLS[0]["op"] == (fmha.flash.FwOp, fmha.flash.BwOp)
    with pytest.raises(Refused, match="nondeterministic"):
        xformers_flash.BACKEND.run(make_inputs(SHORT, "cpu"), True)


# --- finding


@pytest.mark.parametrize("backend", BACKENDS.values())
def test_nothing_heavy_is_imported_to_look(backend: Backend) -> None:
    source = (
        "import sys\n"
        "from attncheck.attention.backends import load\n"
        f"load()[0]['{backend.name}'].installed()\n"
        "print([name for name in ('torch', 'kernels', 'flash_attn', 'xformers') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


PACKAGES = {
    "flash_attention_3": ("flash_attn_interface", "flash_attn_3"),
    "flash_attention_4": ("flash_attn", "flash_attn_4"),
    "xformers_cutlass": ("xformers", "xformers"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_found_without_running_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, distribution = PACKAGES[name]
    monkeypatch.delitem(sys.modules, module)
    backend = BACKENDS[name]
    assert "not installed" in backend.installed().missing
    (tmp_path / f"{module}.py").write_text("raise SystemExit('imported')\n")
    record = tmp_path / f"{distribution}-9.1.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    if name == "flash_attention_4":
        assert backend.installed().missing.endswith(
            "needs nvidia-cutlass-dsl, quack-kernels, apache-tvm-ffi, not installed here"
        )
        for required in flash_attention_4.REQUIRED_MODULES:
            (tmp_path / f"{required}.py").write_text("raise SystemExit('imported')\n")
        importlib.invalidate_caches()
    assert (backend.installed().version, backend.installed().missing) == ("9.1", "")


def test_the_copy_of_four_inside_flash_attn_2_is_not_flash_attention_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "flash_attn.cute")
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert BACKENDS["flash_attention_4"].installed().missing == "flash-attn-4 is not installed"


# --- Hub kernels


def write_snapshot(cache: Path, kind: str, repository: str, ref: str, commit: str, built: bool = True) -> Path:
    home = cache / f"{kind}--{repository.replace('/', '--')}"
    folder = home / "snapshots" / commit
    variant = folder / "build" / "torch-universal"
    variant.mkdir(parents=True)
    if built:
        (variant / "__init__.py").touch()
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / ref).write_text(commit)
    return folder


def test_the_newest_cached_version_with_a_build_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    repository = "kernels-community/flash-attn2"
    assert hub_kernels.newest_snapshot(repository) == ("", None)
    main = write_snapshot(tmp_path, "models", repository, "main", "a" * 40)
    assert hub_kernels.newest_snapshot(repository) == ("main (aaaaaaa)", main)
    second = write_snapshot(tmp_path, "kernels", repository, "v2", "b" * 40)
    write_snapshot(tmp_path, "kernels", repository, "v3", "c" * 40, built=False)
    assert hub_kernels.newest_snapshot(repository) == ("v2", second)
    write_snapshot(tmp_path, "kernels", "kernels-community/flash-attn3", "v9", "d" * 40)
    tenth = write_snapshot(tmp_path, "kernels", repository, "v10", "e" * 40)
    assert hub_kernels.newest_snapshot(repository) == ("v10", tenth)


def test_a_kernel_without_the_package_that_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    backend = BACKENDS["hub_flash_attn_2"]
    write_snapshot(tmp_path, "kernels", flash_attention_2.HUB, "v3", "a" * 40)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "kernels, which loads Hub kernels, is not installed" in backend.installed().missing
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert backend.installed().version == "v3"
    assert "in the local Hub cache" in BACKENDS["hub_flash_attn_3"].installed().missing


@pytest.mark.parametrize("release", ["0.9", "0.17"])
def test_a_kernel_is_loaded_with_the_network_switched_off(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LOAD.cache_clear()
    monkeypatch.setattr(hub_kernels, "load", LOAD)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    folder = write_snapshot(tmp_path, "kernels", flash_attention_2.HUB, "v3", "a" * 40)
    constants: Any = SimpleNamespace(HF_HUB_OFFLINE=False)
    calls: list[Any] = []

    def old(repo_path: Path, package_name: str) -> ModuleType:
        calls.append((repo_path, package_name, constants.HF_HUB_OFFLINE))
        return stubs.fa2_hub()

    def new(repo_path: Path, *, backend: str | None = None, trust_remote_code: bool = False) -> ModuleType:
        calls.append((repo_path, "flash_attn2", constants.HF_HUB_OFFLINE))
        return stubs.fa2_hub()

    kernels: Any = ModuleType("kernels")
    kernels.get_local_kernel = old if release == "0.9" else new
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    monkeypatch.setitem(sys.modules, "huggingface_hub", ModuleType("huggingface_hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    assert judge_backend(BACKENDS["hub_flash_attn_2"], with_name(PLAIN)) == "pass"
    assert calls == [(folder, "flash_attn2", True)]
    assert not constants.HF_HUB_OFFLINE and "HF_HUB_OFFLINE" not in os.environ


def test_a_cached_kernel_built_for_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LOAD.cache_clear()
    monkeypatch.setattr(hub_kernels, "load", LOAD)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    write_snapshot(tmp_path, "kernels", flash_attention_3.HUB, "v1", "a" * 40)

    def loader(repo_path: Path) -> ModuleType:
        raise FileNotFoundError("Cannot find a build variant for this system in here:\n\nlong")

    kernels: Any = ModuleType("kernels")
    kernels.get_local_kernel = loader
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    monkeypatch.setitem(sys.modules, "huggingface_hub", ModuleType("huggingface_hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", SimpleNamespace(HF_HUB_OFFLINE=False))
    with pytest.raises(Refused, match="no build for this torch: Cannot find a build variant"):
        BACKENDS["hub_flash_attn_3"].run(make_inputs(SHORT, "cpu"), False)


# --- what ran, and scripts


KERNELS = {  # as a profiler shows them: hopper/flash_fwd_launch_template.h, flash-attention#2564, PyTorch's own
    "flash_attention_3": (
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloop<> > > >",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<> > >",
        "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<>, 1> >",
        "flash::prepare_varlen_num_blocks_kernel(int, int, int)",
    ),
    "flash_attention_4": (
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor0000o111",
        "flash_bwd_sm100_bf16_head_dim128_kernel_cutlass_kernel_flash_attncuteflash_bwd_sm100FlashAttentionBackwardSm100",
    ),
    "xformers_cutlass": ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>)",),
    "xformers_flash": (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64> >",
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64> >",
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_known_by_name(name: str) -> None:
    for kernel in KERNELS[name]:
        assert [other for other in KERNELS if re.search(BACKENDS[other].kernel_pattern, kernel)] == [name]


@pytest.mark.parametrize(("backend", "case"), accepted_params())
def test_the_script_calls_the_backend_alike(backend: Backend, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.script_lines is not None
    lines = "\n".join(backend.script_lines(case))
    ast.parse(lines)
    inputs = make_inputs(case, "cpu")
    out = run_script(lines, inputs, monkeypatch)
    exact = compute_reference(inputs, backend.noise, backend.rounded_bias)
    assert exact.judged is not None
    error = (out.double() - exact.out) * exact.judged[..., None, None]
    assert float(error.abs().max()) < 0.05


def run_script(lines: str, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the script's `out`, with the names that attncheck gives a script."""
    from attncheck.attention.masks import build_alibi_bias, build_mask
    from attncheck.core.cases import iter_segments

    case = inputs.case
    kernels: Any = ModuleType("kernels")
    kernels.get_kernel = lambda repository, revision: hub_kernels.load(repository)
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    names: dict[str, Any] = {"torch": torch, "math": math, "device": "cpu", "scale": case.softmax_scale}
    names |= {"B": case.batch, "H": case.num_heads, "HK": case.num_kv_heads, "DV": case.v_head_dim}
    names |= {"SQ": case.seqlen_q, "SK": case.seqlen_k, "mask": build_mask(case, "cpu")}
    names |= {name: getattr(inputs, name) for name in ("q", "k", "v", "sinks", "slopes")}
    names |= {"seqlens_q": list(case.seqlens_q), "seqlens_k": list(case.seqlens_k)}
    names["at_q"] = [(s.batch, slice(s.q_start, s.q_stop)) for s in iter_segments(case)]
    names["at_k"] = [(s.batch, slice(s.k_start, s.k_stop)) for s in iter_segments(case)]
    if case.alibi:
        assert inputs.slopes is not None
        names["bias"] = build_alibi_bias(case, inputs.slopes)[None]
    exec(lines, names)
    return names["out"]


def test_stand_ins_have_the_signatures_that_were_read() -> None:
    parameters = inspect.signature(stubs.fa4().flash_attn_varlen_func).parameters
    assert list(parameters)[:5] == ["q", "k", "v", "qv", "cu_seqlens_q"]


def test_what_backends_call_later_is_there() -> None:
    folder = Path(backend_modules.__file__).parent
    names = {name for path in folder.glob("*.py") for name in re.findall(r'defer\("([\w:]+)"', path.read_text("utf-8"))}
    assert {"sdpa:run", "transformer_engine:run", "xformers:script_lines"} <= names
    for name in names:
        assert callable(pkgutil.resolve_name(f"attncheck.attention.calls.{name}")), name

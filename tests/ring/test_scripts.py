"""The scripts of context-parallel schemes stand alone under torchrun, and show what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.attention import backends
from attncheck.attention.backend import Backend, Device
from attncheck.core.cases import Case, named
from attncheck.core.errors import BadUsage
from attncheck.measure import reproduce
from attncheck.measure.parity import Request
from attncheck.measure.suites import SUITES
from attncheck.ring import suites
from attncheck.workers.execution import Bench
from tests import snapshots

pytest.importorskip("torch")
BENCH = Bench(sys.executable, "cpu")
SCHEMES = {name: backend for name, backend in backends.load()[0].items() if backend.sharding is not None}
STAND_IN = "from attncheck.ring import emulated_flash_attn as emulated\nemulated.install('2.8')\n"


def kinds(scheme: Backend, ranks: int) -> Iterator[Case]:
    """Yield a case of each kind that a scheme runs, on the CPU with emulated kernels or on a GPU."""
    devices = (
        Device("cpu", torch=(99, 0), ranks=ranks, emulated=True),
        Device("cuda", "H200", (9, 0), (99, 0), ranks),
    )
    seen = set()
    for word in SUITES:
        for case in suites.suite(word, ranks):
            kind = (case.layout, case.operands, bool(case.heads_k_stride), case.causal, case.probe, case.windowed)
            if kind in seen or all(scheme.refuse(case, device) for device in devices):
                continue
            seen.add(kind)
            yield case


@pytest.mark.parametrize("name", SCHEMES)
def test_every_kind_of_case_has_a_script_of_its_own(name: str) -> None:
    """None needs attncheck, none is long, and all are Python."""
    written = 0
    for case in kinds(SCHEMES[name], 2):
        for device in ("cpu", "cuda"):
            lines = list(reproduce.ring_lines(case, SCHEMES[name], device))
            compile("\n".join(lines), case.name, "exec")
            assert not any("attncheck" in line for line in lines[1:])
            assert len(lines) <= 110
            written += 1
    assert written >= 6


def errors(script: str, ranks: int, folder: Path, stand_in: str = STAND_IN) -> dict[str, float]:
    """Run a script with torchrun, with a stand-in for flash-attn, and return the relative errors that it prints."""
    (folder / "flash_attn").mkdir()
    (folder / "flash_attn/__init__.py").write_text(stand_in)
    path = folder / "reproduce.py"
    path.write_text(script)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    root = str(Path(reproduce.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": f"{folder}:{root}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, path], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "rounding alone" in done.stdout
    return {name: float(error) for name, error in re.findall(r"(\w+): relative error (\S+),", done.stdout)}


def case_of(ranks: int, packed: bool) -> Case:
    shape = {"num_kv_heads": 2, "context_parallel_size": ranks}
    if not packed:
        return named(Case("dense", (256,), (256,), **shape))  # type: ignore[arg-type]
    seqlens = (16, 144, 96)
    return named(Case("packed", seqlens, seqlens, layout="packed", **shape))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "ranks", "packed"),
    [
        ("ring_flash_attn", 2, False),
        ("stripe_flash_attn", 2, False),
        ("zigzag_ring_flash_attn_varlen", 2, True),
        ("llama3_flash_attn_varlen", 4, True),
        ("ulysses_sdpa", 4, True),
        ("ulysses_flash_attn", 2, True),
        ("torch_ring_templates", 2, False),
    ],
)
def test_a_script_runs_under_torchrun_and_agrees(name: str, ranks: int, packed: bool, tmp_path: Path) -> None:
    if "flash_attn" in name and "ulysses" not in name:
        pytest.importorskip("transformers")
        if backends.load()[0][name].find().missing:
            pytest.skip("ring-flash-attn is not installed")
    script = "\n".join(reproduce.ring_lines(case_of(ranks, packed), SCHEMES[name], "cpu")) + "\n"
    found = errors(script, ranks, tmp_path)
    assert set(found) == {"out", "dq", "dk", "dv"}
    assert max(found.values()) < 0.01, found


def test_a_script_shows_what_is_wrong(tmp_path: Path) -> None:
    spoilt = STAND_IN + (
        "import flash_attn.flash_attn_interface as interface, flash_attn\n"
        "right = flash_attn.flash_attn_func\n"
        "flash_attn.flash_attn_func = lambda q, k, v, **words: right(q, k, v.roll(1, 1), **words)\n"
    )
    case = case_of(2, False)
    script = "\n".join(reproduce.ring_lines(case, SCHEMES["ulysses_flash_attn"], "cpu")) + "\n"
    assert errors(script, 2, tmp_path, spoilt)["out"] > 0.1


def test_a_case_is_found_by_its_name() -> None:
    case = next(iter(kinds(SCHEMES["ulysses_sdpa"], 4)))
    request = Request(backends=("ulysses_sdpa",))
    text = reproduce.ring_script(snapshots.laptop(), request, 4, case.name, BENCH)
    assert text.startswith(f"# ulysses_sdpa on {case.name}, against float64")
    assert "torchrun --nproc-per-node 4" in text and text.endswith("\n")
    seeded = reproduce.ring_script(snapshots.laptop(), request, 4, f"{case.name}-seed5", BENCH)
    assert "manual_seed(6)" in seeded
    grown = suites.growth(2)[0].name
    assert grown in reproduce.ring_script(snapshots.laptop(), request, 2, grown, BENCH)
    model = snapshots.model(snapshots.laptop())
    own = suites.for_model(model.model.value, 2)[0]  # type: ignore[union-attr]
    assert own.name in reproduce.ring_script(model, request, 2, own.name, BENCH)
    for wrong, told in (
        (replace(request, backends=()), "one --backend"),
        (replace(request, backends=("sdpa_math",)), "leave --ring-size out"),
    ):
        with pytest.raises(BadUsage, match=told):
            reproduce.ring_script(snapshots.laptop(), wrong, 4, case.name, BENCH)
    with pytest.raises(BadUsage, match="--ring-size 2 -v"):
        reproduce.ring_script(snapshots.laptop(), request, 2, case.name, BENCH)

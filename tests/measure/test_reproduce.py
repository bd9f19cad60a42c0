"""The script of --explain-case is alone, has the very inputs that were measured, and shows what was wrong."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.attention.backend import Backend, Device
from attncheck.attention.backends import eager, sdpa_flash, sdpa_math
from attncheck.attention.inputs import make_inputs
from attncheck.core.cases import Case, with_name
from attncheck.measure import reproduce
from attncheck.measure.suites import make_suite
from tests.conftest import Run

CPU = Device("cpu", torch=(99, 0))


def distinct_cases() -> list[Case]:
    """Return one case of each kind that the standard suite has."""
    cases_by_kind: dict[tuple[object, ...], Case] = {}
    for case in make_suite("standard"):
        kind = (case.family, case.values, case.probe, case.strides, case.layout, case.alignment, case.dtype)
        if case.seqlen_q <= 1100 and case.probe not in ("dropout", "nan_poison"):
            cases_by_kind.setdefault(kind, case)
    return list(cases_by_kind.values())


def run_script(case: Case, backend: Backend) -> tuple[dict[str, Any], str]:
    source = "\n".join(reproduce.script_lines(case, backend, "cpu"))
    namespace: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, case.name, "exec"), namespace)
    return namespace, printed.getvalue()


def strides_that_count(x: torch.Tensor) -> list[int]:
    """Return the strides of all dimensions but those of size 1, whose stride no address depends on."""
    return [stride for size, stride in zip(x.shape, x.stride()) if size > 1]


def read_errors(printed: str) -> list[float]:
    """Return the relative error of each tensor, or the largest of its elements if the exact one is 0."""
    lines = [line for line in printed.splitlines() if ":" in line]
    texts = [line.partition("largest " if "the exact one is 0" in line else "error ")[2] for line in lines]
    return [float(re.split("[, ]", text)[0]) for text in texts]


@pytest.mark.parametrize("case", distinct_cases(), ids=lambda case: case.name)
def test_a_script_has_the_measured_inputs_and_runs(case: Case) -> None:
    backend = next(b for b in (sdpa_flash.BACKEND, sdpa_math.BACKEND, eager.BACKEND) if not b.refuse(case, CPU))
    names, printed = run_script(case, backend)
    if not case.probe:
        inputs = make_inputs(case, "cpu")
        for name in ("q", "k", "v", "dout"):
            assert torch.equal(names[name].detach(), getattr(inputs, name)), name
            assert strides_that_count(names[name]) == strides_that_count(getattr(inputs, name)), name
    # The inputs that cancel, or that eager rounds badly, have large relative errors by nature.
    if case.values in ("normal", "outlier", "small") and case.probe not in ("poison", "prefix"):
        assert max(read_errors(printed)) < (1e-5 if case.dtype == "float32" else 0.03), printed


def test_a_gradient_that_is_exactly_zero_is_divided_by_nothing() -> None:
    """A query that sees one key attends to it alone, whatever the scores: dq and dk are 0."""
    case = with_name(Case("dense", (1,), (1,)))
    _, printed = run_script(case, sdpa_math.BACKEND)
    assert "dq: error 0.000e+00 if the exact one is 0" in printed and "dk: error 0.000e+00" in printed
    assert "dv: relative error" in printed and max(read_errors(printed)) < 0.03


def test_every_script_is_short() -> None:
    for case in distinct_cases():
        assert "\n".join(reproduce.script_lines(case, sdpa_math.BACKEND, "cpu")).count("\n") < 60


def test_a_sampled_script_runs_too() -> None:
    case = next(case for case in make_suite("full") if case.family == "long" and case.seqlen_q == 4097)
    _, printed = run_script(case, sdpa_flash.BACKEND)
    assert max(read_errors(printed)) < 0.03


def test_the_command_writes_a_script_that_stands_alone(attncheck: Run, tmp_path: Path) -> None:
    name = "dense-causal-s257-h4kv2-d64-bf16-normal"
    done = attncheck("parity", "--explain-case", name, "--backend", "sdpa_flash", "--device", "cpu")
    assert done.returncode == 0
    assert "attncheck" not in done.stdout.partition("\n")[2], "it needs torch and the backend alone"
    script = tmp_path / "reproduce.py"
    script.write_text(done.stdout)
    again = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in again.stdout.splitlines()[:4]] == ["out", "dq", "dk", "dv"]


def test_a_seeded_case_is_found_by_its_name(attncheck: Run) -> None:
    name = "dense-causal-s257-h4kv2-d64-bf16-normal-seed5"
    done = attncheck("parity", "--explain-case", name, "--backend", "eager", "--device", "cpu")
    assert "manual_seed(6)" in done.stdout
    refused = attncheck("parity", "--explain-case", name.replace("normal-seed5", "no"), "--backend", "eager")
    assert refused.returncode == 2

"""A scalar that is read in a compiled function breaks its graph, and no longer with dynamo's variable."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch

def longest(lengths):
    return lengths * int(lengths.diff().max().item())

print(torch._dynamo.explain(longest)(torch.tensor([0, 3, 8])).graph_break_count)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
@pytest.mark.parametrize(("value", "breaks"), [pytest.param("0", 1, marks=pytest.mark.nightly), ("1", 0)])
def test_the_variable_keeps_one_graph(value: str, breaks: int) -> None:
    environ = {**os.environ, "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS": value}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str(breaks), done.stderr[-500:]

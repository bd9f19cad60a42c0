"""Steps that calls of backends share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attncheck.attention.calls.common import unpad
from attncheck.attention.inputs import make_inputs
from attncheck.core.cases import Case, with_name

SWITCHES = """
import sys, torch
from attncheck.attention.calls.common import deterministic_algorithms
{before}
def state():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
states = [state()]
with deterministic_algorithms(True, warn_only=True):
    states.append(state())
    with deterministic_algorithms(True):
        states.append(state())
        with deterministic_algorithms(False):
            states.append(state())
    states.append(state())
states.append(state())
config = sys.modules.get("torch._inductor.config")
print(states, config is not None and config.deterministic)
"""
WARN, STRICT, OFF = (True, True), (True, False), (False, False)


@pytest.mark.parametrize("before", ["", "import torch._inductor.config"])
def test_determinism_is_switched_as_torch_does_and_imports_no_compiler(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWITCHES.format(before=before)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == f"{[OFF, WARN, STRICT, STRICT, WARN, OFF]} False", done.stderr


@pytest.mark.parametrize("keys", [(0, 0), (0, 2)])
def test_documents_without_keys_have_none_after_padding_is_removed(keys: tuple[int, ...]) -> None:
    inputs = make_inputs(with_name(Case("plain", (3, 4), keys, layout="right_padded")), "cpu")
    packed = unpad(inputs)
    assert packed.q.shape[:2] == (1, 7) and packed.k.shape[:2] == packed.v.shape[:2] == (1, sum(keys))

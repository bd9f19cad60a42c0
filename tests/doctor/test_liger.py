"""Which of liger's patches have no target, read from source text."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.imports import liger

PATCHES = """
def apply_liger_kernel_to_toy(rope=True, swiglu=True, model=None):
    from transformers.models.toy import modeling_toy
    if rope:
        modeling_toy.rotate = liger_rotate
        modeling_toy.gone = liger_gone
    modeling_toy.OldNorm = LigerRMSNorm
    modeling_toy.ToyNorm = LigerRMSNorm
    if swiglu:
        if NEW:
            modeling_toy.Experts = LigerExperts
        else:
            modeling_toy.Block = LigerBlock
    if model is not None:
        model.forward = forward
    else:
        modeling_toy.ToyForCausalLM.forward = forward
    from transformers.models.absent import modeling_absent
    modeling_absent.Name = other
"""
MODELLING = """
from .layers import (
    ToyNorm,
    other,
)


def rotate(x):
    gone = 1


class ToyForCausalLM:
    pass
"""


def test_liger_patches_that_would_hit_nothing(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "modeling_toy.py").write_text(MODELLING)
    toy = "transformers.models.toy.modeling_toy:"
    assert liger.find_missing_targets(PATCHES, str(tmp_path), {"NEW": True}) == [toy + "Experts", toy + "gone"]
    assert liger.find_missing_targets(PATCHES, str(tmp_path), {"NEW": False}) == [toy + "Block", toy + "gone"]


@pytest.mark.parametrize(
    ("text", "defined"),
    [
        ("class Name(Base):\n", True),
        ("def Name(x):\n", True),
        ("Name = 1\n", True),
        ("from a import b, Name\n", True),
        ("from a import (\n    b,\n    Name,\n)\n", True),
        ("if x:\n    from a import Name\n", True),
        ("from a import *\n", True),
        ("# Name no longer exists\n", False),
        ("class OtherName:\n    pass\n", False),
        ("def f():\n    return Name\n", False),
        ("def f(Name=1):\n    x = g(Name=2)\n", False),
    ],
)
def test_names_that_a_source_defines(text: str, defined: bool) -> None:
    assert liger.defines_name(text, "Name") is defined

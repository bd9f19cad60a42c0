"""Programs of the user's own around a ring: each omission is said, and the program that leaves nothing out is
silent."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import torch

from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.programs.ring_calls import PAD_CODE
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model, read_no_file
from tests.lint.programs.trees import write_tree

RING = """
    import torch, torch.distributed as dist
    from ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params
    from data import collate
    group = dist.new_group()
    substitute_hf_flash_attn(group, 1)
    for batch in collate():
        update_ring_flash_attn_params(batch["cu_seqlens"], group)
        model(**batch).loss.backward()
"""
PADS = "from torch.nn import functional as F\ndef collate(): return F.pad(rows, (0, 3))\n"
USP = """
    import torch
    from yunchang import LongContextAttention, set_seq_parallel_pg
    from yunchang.kernels import AttnType
    set_seq_parallel_pg(2, 2, rank, 4)
    attention = LongContextAttention(ring_impl_type="zigzag", attn_type=AttnType.FA)
    length = length // 8 * 8
    attention(q, k, v).sum().backward()
"""
ULYSSES = """
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "flash_attention_2", 2)
    model(input_ids=rows, position_ids=positions)
"""


def lint(folder: Path, name: str = "train.py") -> Report:
    request = Request((read_source(str(folder / name)),))
    return run.run(s.h200(), request, read_model, read_no_file)


def messages(report: Report) -> str:
    return "\n".join(finding.message for finding in report.findings if finding.code == "ATN576")


@pytest.mark.parametrize("program", [RING, USP, ULYSSES])
def test_a_program_that_leaves_nothing_out_is_silent(tmp_path: Path, program: str) -> None:
    assert messages(lint(write_tree(tmp_path, {"train.py": program, "data.py": PADS}))) == ""


@pytest.mark.parametrize(
    ("program", "word", "replacement", "message"),
    [
        (RING, "from data import collate", "collate = list", "divisible length"),
        (RING, 'update_ring_flash_attn_params(batch["cu_seqlens"], group)', "pass", "KeyError: 'cu_seqlens_q'"),
        (USP, "AttnType.FA", "AttnType.TORCH_MATH", "Not implemented backward"),
        (USP, "set_seq_parallel_pg(2, 2, rank, 4)", "pass", "use all ranks as their group"),
        (USP, "length = length // 8 * 8", "pass", "divisible length"),
        (ULYSSES, "position_ids=positions", "", "needs position_ids"),
    ],
)
def test_what_is_left_out_is_said(tmp_path: Path, program: str, word: str, replacement: str, message: str) -> None:
    text = dedent(program).replace(word, replacement).replace(", update_ring_flash_attn_params", "")
    if "update_ring" in word:
        text = text.replace("import substitute_hf_flash_attn, ", "import ")
    if message.startswith("divisible") and program is USP:
        text += "q = extract_local(q)\n"
    report = lint(write_tree(tmp_path, {"train.py": text, "data.py": PADS}))
    assert message in messages(report)
    assert all(finding.fixes and finding.locations for finding in report.findings if finding.code == "ATN576")


def test_the_basic_ring_in_float16_is_said(tmp_path: Path) -> None:
    text = "from ring_flash_attn import ring_flash_attn_func\nring_flash_attn_func(q.to(torch.float16), k, v)\n"
    assert "in bfloat16" in messages(lint(write_tree(tmp_path, {"train.py": text})))
    assert messages(lint(write_tree(tmp_path, {"train.py": text.replace("float16", "bfloat16")}))) == ""


def test_the_program_of_a_launch_is_judged(tmp_path: Path) -> None:
    write_tree(tmp_path, {"train.py": dedent(RING).replace("from data import collate", "collate = list")})
    source = Source(str(tmp_path / "run.sh"), "torchrun --nproc_per_node 4 train.py\n", "shell")
    report = run.run(s.h200(), Request((source,)), read_model, read_no_file)
    assert "to a divisible length" in messages(report)


@pytest.mark.parametrize("text", ["import ring_flash_attn\n" + "(" * 300, "ring_flash_attn = 1\n"])
def test_strange_programs_end_in_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert messages(lint(tmp_path)) == ""


def test_the_code_that_pads_pads() -> None:
    names = {"batch": {"input_ids": torch.ones(2, 6).long(), "labels": torch.ones(2, 6).long()}, "ring_size": 4}
    exec(PAD_CODE.replace("MULTIPLE", "(ring_size)"), names)
    batch = names["batch"]
    assert isinstance(batch, dict)
    assert batch["input_ids"].shape == batch["position_ids"].shape == (2, 8)
    assert batch["labels"][0].tolist() == [1] * 6 + [-100] * 2
    assert batch["position_ids"][1].tolist() == list(range(8))

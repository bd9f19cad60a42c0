"""FlashAttention 2, 3 and 4, emulated for a model of transformers, which imports each one's module for its name.

In a process as a launch's: the watcher's changes of transformers, and the emulated packages first on the path.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.rehearsal import execution

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from attncheck.rehearsal.watcher import emulation
from transformers.utils import import_utils
emulation.allow_in_import_utils(import_utils)
import transformers.utils
for name in ("is_flash_attn_2_available", *emulation.NEWER.values()):
    setattr(transformers.utils, name, getattr(import_utils, name))
import torch
from transformers import LlamaConfig, LlamaForCausalLM, modeling_utils
emulation.allow_in_modeling_utils(modeling_utils)
torch.manual_seed(0)
sizes = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64)
def make(name):
    model = LlamaForCausalLM._from_config(LlamaConfig(vocab_size=64, **sizes), attn_implementation=name)
    return model.to(torch.bfloat16)
model, eager = make(sys.argv[1]), make("eager")
eager.load_state_dict(model.state_dict())
row = torch.arange(3, 19)[None]
borders, running = torch.arange(8).repeat(2)[None], torch.arange(16)[None]
alone = torch.cat([eager(row[:, part]).logits for part in (slice(0, 8), slice(8, 16))], dim=1)
def differ(**options):
    return float((model(row, **options).logits - alone).abs().max())
loss = model(row, position_ids=borders, labels=row).loss
loss.backward()
gradient = max(float(parameter.grad.abs().max()) for parameter in model.parameters())
loaded = [name for name in ("flash_attn_interface", "flash_attn.cute") if name in sys.modules]
print(json.dumps([differ(position_ids=borders), differ(position_ids=running), gradient, loaded]))
"""


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("flash_attention_2", []),
        ("flash_attention_3", ["flash_attn_interface"]),
        ("flash_attention_4", ["flash_attn.cute"]),
    ],
)
def test_a_model_attends_by_the_module_of_its_implementation(tmp_path: Path, name: str, module: list[str]) -> None:
    """Documents that positions separate are as they are individually; without borders they differ (planted)."""
    execution.lay_flash_attn(tmp_path, name)
    is_third = name == "flash_attention_3"  # transformers 5.9 fails if no distribution has the module
    assert (tmp_path / "flash_attn_interface.py").exists() == is_third
    environment = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "ATTNCHECK_EMULATED": name, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    separate, mixed, gradient, loaded = json.loads(done.stdout)
    assert separate < 0.02 < mixed and gradient > 0 and loaded == module

"""FlashAttention 2, 3 and 4, emulated for a model of transformers, which imports or loads each one for its name.

In a process as a launch's: the watcher's changes of transformers, and the emulated packages first on the path.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attncheck.lint.fields.rehearsing import find_emulated
from attncheck.rehearsal import execution
from tests.rehearsal.staging import nightly

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from attncheck.rehearsal.watcher import emulation
from transformers.utils import import_utils
emulation.allow_in_import_utils(import_utils)
import torch, transformers.utils
assert import_utils.is_torch_bf16_gpu_available() or torch.cuda.is_available()  # the CPU has it, as the user's GPU
for name in ("is_flash_attn_2_available", *emulation.NEWER.values()):
    setattr(transformers.utils, name, getattr(import_utils, name))
from transformers.integrations import hub_kernels
emulation.allow_hub_kernels(hub_kernels)
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, modeling_utils
emulation.allow_in_modeling_utils(modeling_utils)
torch.manual_seed(0)
sizes = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64)
SINKS = dict(num_local_experts=2, num_experts_per_tok=1, head_dim=16, sliding_window=4)
def make(name):
    kind, config = LlamaForCausalLM, LlamaConfig(vocab_size=64, **sizes)
    if sys.argv[2:]:
        kind, config = GptOssForCausalLM, GptOssConfig(vocab_size=64, **sizes, **SINKS)
    return kind._from_config(config, attn_implementation=name).to(torch.bfloat16)
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
modules = ("flash_attn_interface", "flash_attn.cute", "flash_attn.flash_attn_3")
loaded = [name for name in modules if name in sys.modules]
used = model.config._attn_implementation
print(json.dumps([differ(position_ids=borders), differ(position_ids=running), gradient, loaded, used]))
"""


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("flash_attention_2", []),
        nightly("flash_attention_3", ["flash_attn_interface"]),
        nightly("flash_attention_4", ["flash_attn.cute"]),
        nightly("kernels-community/flash-attn2", []),
        nightly("kernels-community/flash-attn2@v1.0:flash_attn_varlen_func", []),
        ("kernels-community/vllm-flash-attn3", ["flash_attn.flash_attn_3"]),
        nightly("someone/flash-attn4", ["flash_attn.cute"]),
    ],
)
def test_a_model_attends_by_the_module_of_its_implementation(tmp_path: Path, name: str, module: list[str]) -> None:
    """Documents that positions separate are as they are individually; without borders they differ (planted)."""
    separate, mixed, gradient, loaded, used = attend(tmp_path, name)
    is_third = find_emulated(name) == "flash_attention_3"  # transformers 5.9 fails if no distribution has the module
    assert (tmp_path / "flash_attn_interface.py").exists() == is_third
    assert separate < 0.02 < mixed and gradient > 0 and loaded == module and used == name


@pytest.mark.parametrize("name", ["kernels-community/vllm-flash-attn3", nightly("flash_attention_4")])
def test_sinks(tmp_path: Path, name: str) -> None:
    """gpt-oss attends to its sinks, in its sliding layers too."""
    separate, mixed, gradient, *_ = attend(tmp_path, name, "sinks")
    assert separate < 0.02 < mixed and gradient > 0


def attend(folder: Path, name: str, *arguments: str) -> list[Any]:
    """Return what the program prints: differences with and without borders, the largest gradient, modules, the name."""
    emulated = find_emulated(name)
    execution.lay_flash_attn(folder, emulated)
    environment = {"PYTHONPATH": f"{folder}:{REPOSITORY}", "ATTNCHECK_EMULATED": emulated, "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", PROGRAM, name, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    printed: list[Any] = json.loads(done.stdout)
    return printed

"""Launch scripts that set something else than they will get: read by `attncheck lint`, never run.

Each is a script as users write it, for the healthy environment of stubs; the control is one without such a setting.
"""

from __future__ import annotations

import json

from attncheck.selftest.faults import Sandbox, SandboxAction
from tests.selftest.planted import PairedFamily, PairedFault, environment, nvidia
from tests.selftest.planted.environment import install_distribution, remove_distributions
from tests.selftest.planted.job import LLAMA_CONFIG, write_model

SFT_SCRIPT = """\
#!/bin/bash
set -x
deepspeed --num_gpus 2 --module openrlhf.cli.train_sft \\
  --model.model_name_or_path {model} \\
  --data.dataset data.jsonl \\
  --data.max_len {max_len} \\
  --train.batch_size {batch} \\
  --train.micro_batch_size 1 \\
  --ds.param_dtype bf16 \\
{options}
"""


def setup_lint(sandbox: Sandbox) -> None:
    """Make the environment with OpenRLHF, and lint a script that is right."""
    environment.setup_environment(sandbox)
    install_distribution(sandbox, "openrlhf", "0.11.0")
    install_distribution(sandbox, "deepspeed", "0.19.5")
    install_distribution(sandbox, "transformers", "5.15.0")
    write_model(sandbox)
    write_script(sandbox)
    sandbox.arguments += ["lint", str(sandbox.folder / "run.sh"), "--python", sandbox.python, "--format", "json"]


def write_script(sandbox: Sandbox, *options: str, max_len: int = 4096, batch: int = 64) -> None:
    """Write the script with further options."""
    lines = " \\\n".join(f"  {option}" for option in ("--ds.attn_implementation flash_attention_2", *options))
    text = SFT_SCRIPT.format(model=sandbox.folder / "model", max_len=max_len, batch=batch, options=lines)
    sandbox.write_file("run.sh", text)


LAUNCH = PairedFamily("launch", "lint of a script that is right", setup_lint, ("linux",))


def with_options(*options: str, **sizes: int) -> SandboxAction:
    """Return what gives the script further options, or other sizes."""
    return lambda sandbox: write_script(sandbox, *options, **sizes)


def request_four_gpus(sandbox: Sandbox) -> None:
    """Launch on four GPUs of a machine that has two."""
    path = sandbox.folder / "run.sh"
    path.write_text(path.read_text().replace("--num_gpus 2", "--num_gpus 4"))


def use_two_v100s(sandbox: Sandbox) -> None:
    """Run the script, which sets bfloat16, on GPUs without it."""
    nvidia.install_nvidia_smi(sandbox.folder / "tools", (nvidia.V100, nvidia.V100))


def request_missing_liger(sandbox: Sandbox) -> None:
    """Enable liger-kernel, which is not installed."""
    remove_distributions(sandbox, "liger-kernel")
    write_script(sandbox, "--ds.use_liger_kernel")


def use_hybrid_model(sandbox: Sandbox) -> None:
    """Pack samples for a model of which three layers in four carry a recurrent state."""
    layers = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    changes = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "layer_types": layers}
    sandbox.write_file("model/config.json", json.dumps({**LLAMA_CONFIG, **changes}))
    write_script(sandbox, "--ds.packing_samples")


def request_other_release(sandbox: Sandbox) -> None:
    """Read the script in the names of a release that is not installed, and requires another transformers."""
    sandbox.arguments += ["--framework-version", "0.10.2"]


def make_fault(name: str, code: str, title: str, imitates: str, inject: SandboxAction, *mentions: str) -> PairedFault:
    """Return a fault of a launch."""
    return PairedFault(name, LAUNCH, (code,), title, imitates, inject, mentions)


FAULTS = (
    make_fault("launch-old-name", "ATN440", "--max_len, a name that OpenRLHF left behind in 0.10.2",
          "a script of last year", with_options("--max_len 2048"), "--max_len"),
    make_fault("launch-gpus", "ATN447", "four GPUs requested, two there", "a script of another machine",
          request_four_gpus),
    make_fault("launch-half-precision", "ATN451", "bfloat16 requested on two V100s", "a script of a newer machine",
          use_two_v100s),
    make_fault("launch-replaced", "ATN442", "packed samples with sdpa, which OpenRLHF makes flash_attention_2 of",
          "a setting that is overruled silently",
          with_options("--ds.packing_samples", "--ds.attn_implementation sdpa"), "flash_attention_2"),
    make_fault("launch-package", "ATN452", "liger-kernel requested and not installed", "an image without it",
          request_missing_liger),
    make_fault("launch-ring-size", "ATN571", "a ring of three on two GPUs", "a ring size copied from another machine",
          with_options("--ds.packing_samples", "--ds.ring_attn_size 3")),
    make_fault("launch-refused", "ATN441", "a ring without packing", "a bare AssertionError after the model is loaded",
          with_options("--ds.ring_attn_size 2"), "packing_samples"),
    make_fault("launch-ring-inactive", "ATN570", "a ring under flash_attention_3, which it is not hooked into",
          "OpenRLHF's check of the name lets it pass",
          with_options("--ds.packing_samples", "--ds.ring_attn_size 2", "--ds.attn_implementation flash_attention_3"),
          "only to its own part"),
    make_fault("launch-head-stride", "ATN572", "a head stride of 3 for 32 key/value heads",
          "the help says number of heads",
          with_options("--ds.packing_samples", "--ds.ring_attn_size 2", "--ds.ring_attn_head_stride 3"),
          "head stride 3"),
    make_fault("launch-hybrid", "ATN444", "packed samples for a model with recurrent layers",
          "OpenRLHF gives position_ids, which such layers never read", use_hybrid_model),
    make_fault("launch-hidden-value", "ATN448", "a length that only running the script tells", "--data.max_len $LENGTH",
          with_options("--data.max_samples $SAMPLES"), "$SAMPLES"),
    make_fault("launch-requirements", "ATN453", "a release of OpenRLHF for another transformers", "an old image's pins",
          request_other_release, "transformers"),
)  # fmt: skip

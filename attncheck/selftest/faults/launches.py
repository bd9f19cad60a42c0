"""Launch scripts that ask for something else than they will get: read by `attncheck lint`, never run.

Each is a script as users write it, for the healthy environment of stubs; the control is one that says what it means.
"""

from __future__ import annotations

import json

from attncheck.selftest.faults import Family, Fault, Ground, Plant, environment, nvidia
from attncheck.selftest.faults.environment import install, remove
from attncheck.selftest.faults.job import LLAMA, model

SFT = """\
#!/bin/bash
set -x
deepspeed --num_gpus 2 --module openrlhf.cli.train_sft \\
  --model.model_name_or_path {model} \\
  --data.dataset data.jsonl \\
  --data.max_len {max_len} \\
  --train.batch_size {batch} \\
  --train.micro_batch_size 1 \\
  --ds.param_dtype bf16 \\
{more}
"""


def lay(ground: Ground) -> None:
    """Lay the environment with OpenRLHF, and lint a script that is right."""
    environment.lay(ground)
    install(ground, "openrlhf", "0.11.0")
    install(ground, "deepspeed", "0.19.5")
    install(ground, "transformers", "5.15.0")
    model(ground)
    script(ground)
    ground.words += ["lint", str(ground.folder / "run.sh"), "--python", ground.python, "--format", "json"]


def script(ground: Ground, *more: str, max_len: int = 4096, batch: int = 64) -> None:
    """Write the script with further options."""
    lines = " \\\n".join(f"  {each}" for each in ("--ds.attn_implementation flash_attention_2", *more))
    text = SFT.format(model=ground.folder / "model", max_len=max_len, batch=batch, more=lines)
    ground.write("run.sh", text)


LAUNCH = Family("launch", "lint of a script that is right", lay, ("linux",))


def asking(*more: str, **sizes: int) -> Plant:
    """Return what gives the script further options, or other sizes."""
    return lambda ground: script(ground, *more, **sizes)


def four_gpus(ground: Ground) -> None:
    """Ask for four GPUs of a machine that has two."""
    path = ground.folder / "run.sh"
    path.write_text(path.read_text().replace("--num_gpus 2", "--num_gpus 4"))


def two_v100s(ground: Ground) -> None:
    """Run the script, which asks for bfloat16, on GPUs without it."""
    nvidia.machine(ground.folder / "tools", (nvidia.V100, nvidia.V100))


def no_liger(ground: Ground) -> None:
    """Ask for liger-kernel, which is not installed."""
    remove(ground, "liger-kernel")
    script(ground, "--ds.use_liger_kernel")


def hybrid(ground: Ground) -> None:
    """Pack samples for a model of which three layers in four carry a recurrent state."""
    layers = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    changes = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "layer_types": layers}
    ground.write("model/config.json", json.dumps({**LLAMA, **changes}))
    script(ground, "--ds.packing_samples")


def requirements(ground: Ground) -> None:
    """Read the script in the names of a release that is not installed, and requires another transformers."""
    ground.words += ["--framework-version", "0.10.2"]


def fault(name: str, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault of a launch."""
    return Fault(name, LAUNCH, (code,), title, imitates, plant, says)


FAULTS = (
    fault("launch-old-name", "ATN440", "--max_len, a name that OpenRLHF left behind in 0.10.2", "a script of last year",
          asking("--max_len 2048"), "--max_len"),
    fault("launch-gpus", "ATN447", "four GPUs asked for, two there", "a script of another machine", four_gpus),
    fault("launch-half-precision", "ATN451", "bfloat16 asked for on two V100s", "a script of a newer machine",
          two_v100s),
    fault("launch-replaced", "ATN442", "packed samples with sdpa, which OpenRLHF makes flash_attention_2 of",
          "a setting that is overruled without a word",
          asking("--ds.packing_samples", "--ds.attn_implementation sdpa"), "flash_attention_2"),
    fault("launch-package", "ATN452", "liger-kernel asked for and not installed", "an image without it", no_liger),
    fault("launch-ring-size", "ATN571", "a ring of three on two GPUs", "a ring size copied from another machine",
          asking("--ds.packing_samples", "--ds.ring_attn_size 3")),
    fault("launch-refused", "ATN441", "a ring without packing", "a bare AssertionError after the model is loaded",
          asking("--ds.ring_attn_size 2"), "packing_samples"),
    fault("launch-ring-inactive", "ATN570", "a ring under flash_attention_3, which it is not hooked into",
          "OpenRLHF's check of the name lets it pass",
          asking("--ds.packing_samples", "--ds.ring_attn_size 2", "--ds.attn_implementation flash_attention_3"),
          "its own part only"),
    fault("launch-head-stride", "ATN572", "a head stride of 3 for 32 key/value heads", "the help says number of heads",
          asking("--ds.packing_samples", "--ds.ring_attn_size 2", "--ds.ring_attn_head_stride 3"), "head stride 3"),
    fault("launch-hybrid", "ATN444", "packed samples for a model with recurrent layers",
          "OpenRLHF gives position_ids, which such layers never read", hybrid),
    fault("launch-hidden-value", "ATN448", "a length that only running the script tells", "--data.max_len $LENGTH",
          asking("--data.max_samples $SAMPLES"), "$SAMPLES"),
    fault("launch-requirements", "ATN453", "a release of OpenRLHF for another transformers", "an old image's pins",
          requirements, "transformers"),
)  # fmt: skip

"""prime-rl (PrimeIntellect-ai/prime-rl and its forks): `uv run rl @ rl.toml`, `uv run sft @ sft.toml --a.b c`.

Rows are documents joined with positions that restart in each. Weights are float32, gathered in bfloat16
(src/prime_rl/trainer/model.py `MixedPrecisionPolicy`, config.py `attn`, `optimization_dtype`).
"""

import re

from attncheck.core.launch import Launch
from attncheck.core.plan import Plan
from attncheck.lint.frameworks.tree_framework import TreeFramework

MODULE = re.compile(r"(?:^|\.)prime_rl\.(?:(rl|sft)|entrypoints\.(rl|sft)|trainer\.(rl|sft)\.train)$")
COMMANDS = {"rl": "rl", "trainer": "rl", "sft": "sft"}


def detect_trainer(program: str, launch: Launch) -> str:
    """Return "rl" or "sft" for a module of the package, or for one of its commands with `@ file.toml`."""
    module = MODULE.search(program)
    reads_file = any(word.text == "@" or word.text.startswith("@") for word in launch.words[1:])
    command = COMMANDS.get(program.rpartition(".")[2], "") if reads_file else ""
    return next(filter(None, module.groups())) if module else command


PRIME_RL = TreeFramework(
    "prime-rl",
    "prime_rl",
    detect_trainer,
    ("model.name", "trainer.model.name"),
    {
        "attn_implementation": ("model.attn", "trainer.model.attn"),
        "batch": ("data.micro_batch_size",),
        "max_length": ("data.seq_len", "model.seq_len", "trainer.model.seq_len", "seq_len"),
        "ring_size": ("model.cp", "trainer.model.cp"),
    },
    Plan("flash_attention_2", precision="autocast", max_length=2048),
    reinforcement=("rl",),
)
FRAMEWORK = PRIME_RL.make_framework("0.5.0")

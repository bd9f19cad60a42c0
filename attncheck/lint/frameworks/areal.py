"""AReaL (inclusionAI/AReaL and its forks): `python3 -m areal.launcher.local train.py --config x.yaml actor.path=…`.

Rows are documents joined with cu_seqlens. They are computed by flash_attention_2 in bfloat16 unless `attn_impl` and
`dtype` say otherwise (areal/api/cli_args.py `TrainEngineConfig`).
"""

import re

from attncheck.core.launch import Launch
from attncheck.core.plan import Plan
from attncheck.lint.frameworks.tree_framework import NO_TRAINING, TreeFramework

LAUNCHER = re.compile(r"areal\.(?:infra\.)?launcher\.(?:local|ray|slurm)$")


def detect_trainer(program: str, launch: Launch) -> str:
    """Return the trainer of a script that AReaL's launcher starts, or that uses the package."""
    is_own = bool(LAUNCHER.search(program))
    script = launch.words[1].text if is_own and len(launch.words) > 1 else program
    if not is_own and not (AREAL.uses(launch) and launch.file is not None):
        return ""
    if NO_TRAINING.search(script.rpartition("/")[2]):
        return ""
    return "sft" if re.search(r"(?:^|[^a-z])sft", script) else "rm" if re.search(r"_rw\b|reward", script) else "grpo"


AREAL = TreeFramework(
    "areal",
    "areal",
    detect_trainer,
    ("actor.path", "model.path"),
    {
        "attn_implementation": ("actor.attn_impl", "model.attn_impl"),
        "precision": ("actor.dtype", "model.dtype"),
        "max_length": ("actor.mb_spec.max_tokens_per_mb", "train_dataset.max_length"),
    },
    Plan("flash_attention_2", packing="cu_seqlens", max_length=1024),
    ("cluster.n_nodes", "cluster.n_gpus_per_node"),
    reinforcement=("grpo",),
)
FRAMEWORK = AREAL.make_framework("1.0.0")

"""torchtitan (pytorch/torchtitan and its forks): `torchrun … -m torchtitan.train --job.config_file x.toml --a.b=c`.

Documents are joined into rows of `training.seq_len`. Attention is causal over the whole row unless flex attention keeps
the documents apart. Parameters are float32, gathered in bfloat16 (v0.2 config/job_config.py `mixed_precision_param`).
"""

from attncheck.core.launch import Launch
from attncheck.core.plan import Plan
from attncheck.lint.frameworks.tree_framework import TreeFramework


def detect_trainer(program: str, launch: Launch) -> str:
    """Return "pretrain" for the `train` module of the framework or a fork."""
    is_own = program.endswith("torchtitan.train") or (TORCHTITAN.uses(launch) and "train" in program)
    return "pretrain" if is_own else ""


TORCHTITAN = TreeFramework(
    "torchtitan",
    "torchtitan",
    detect_trainer,
    ("model.hf_assets_path", "model.tokenizer_path"),
    {
        "batch": ("training.local_batch_size", "training.batch_size"),
        "max_length": ("training.seq_len",),
        "ring_size": ("parallelism.context_parallel_degree", "experimental.context_parallel_degree"),
        "gradient_checkpointing": ("activation_checkpoint.mode",),
        "global_batch": ("training.global_batch_size",),
        "pipeline_parallel": ("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"),
        "compile": ("compile.enable", "training.compile"),
        "tensor_parallel": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"),
    },
    Plan("sdpa", packing="padding", precision="autocast", max_length=2048, gradient_checkpointing=True),
)
FRAMEWORK = TORCHTITAN.make_framework("0.2.2")

"""Settings that verl's fine-tuning trainers, `sft_trainer` and `fsdp_sft_trainer`, share when scaled down."""

from collections.abc import Mapping

from attncheck.lint.fields import Job
from attncheck.lint.fields.cutting import LEARNING_RATE, Materials


def count_groups(job: Job, materials: Materials) -> int:
    """Return the number of groups of ranks in the scaled-down job; the ranks of a group share rows.

    An unknown number of processes (`--nproc_per_node=$1`) becomes the possible one.
    """
    return min(getattr(job.world_size, "value", materials.processes), materials.processes) // materials.ring_size


def list_sizes(materials: Materials, groups: int, named: str) -> Mapping[str, str]:
    """Return the settings of size, and those that prevent saved files; `named` are the launch's own rows."""
    return {
        "data.train_files": materials.choose_rows(named, materials.parquet_file),
        "data.train_batch_size": str(materials.batch * materials.accumulation * groups),
        "data.micro_batch_size_per_gpu": str(materials.batch),
        "data.max_length": str(materials.max_length),
        "optim.lr": LEARNING_RATE,
        "trainer.total_training_steps": str(materials.steps),
        "trainer.total_epochs": "1",
        "trainer.default_local_dir": materials.output,
        "trainer.logger": "[console]",
        "trainer.save_freq": "-1",
        "trainer.test_freq": "-1",
        "trainer.resume_mode": "disable",
        **keep_hydra_in(materials),
    }


def keep_hydra_in(materials: Materials) -> Mapping[str, str]:
    """Return the settings that keep Hydra from writing `outputs/` into the folder in which the launch starts."""
    return {"hydra.run.dir": f"{materials.output}/hydra", "hydra.output_subdir": "null"}


def remark_fsdp2(setting: str) -> str:
    """Return the remark that FSDP 2 replaces FSDP 1 on a CPU; `setting` is the trainer's setting."""
    return f"FSDP1 needs a GPU, and this machine has none: {setting}=fsdp2 replaces it"

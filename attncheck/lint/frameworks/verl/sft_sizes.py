"""What verl's fine-tuning trainers, `sft_trainer` and `fsdp_sft_trainer`, call alike when they are scaled down."""

from collections.abc import Mapping

from attncheck.lint.fields import LEARNING_RATE, Job, Materials


def count_groups(job: Job, materials: Materials) -> int:
    """Return how many groups of ranks, which share rows, the job has here."""
    return min(getattr(job.world_size, "value", 1), materials.processes) // materials.ring_size


def list_sizes(materials: Materials, groups: int) -> Mapping[str, str]:
    """Return the settings of size, and those that leave nothing behind."""
    return {
        "data.train_files": materials.parquet_file,
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
    """Return the settings with which Hydra lays no `outputs/` in the folder if the launch is started."""
    return {"hydra.run.dir": f"{materials.output}/hydra", "hydra.output_subdir": "null"}


def remark_fsdp2(setting: str) -> str:
    """Return that FSDP 2 represents FSDP 1 on a CPU, in the name of the trainer's setting."""
    return f"FSDP1 needs a GPU, and this machine has none: {setting}=fsdp2 replaces it"

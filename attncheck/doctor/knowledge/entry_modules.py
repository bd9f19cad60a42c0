"""The modules that jobs of each package import, by trainer; a broken one stops that job at start-up.

Source: wheels of trl 0.23.0 and 1.16.0, verl 0.9.1, openrlhf 0.11.2, axolotl 0.19.0, ms_swift 3.12.0 and llamafactory
0.9.3, their console scripts and what those import, read on 2026-11-23.
"""

from collections.abc import Mapping

ANY_TRAINER = ""

ENTRY_MODULES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "trl": {
        ANY_TRAINER: ("trl", "trl.trainer.utils"),
        "sft": ("trl.trainer.sft_trainer", "trl.trainer.sft_config"),
        "dpo": ("trl.trainer.dpo_trainer", "trl.trainer.dpo_config"),
        "grpo": ("trl.trainer.grpo_trainer", "trl.trainer.grpo_config"),
        "rloo": ("trl.trainer.rloo_trainer", "trl.trainer.rloo_config"),
        "kto": ("trl.trainer.kto_trainer", "trl.trainer.kto_config"),
        "reward": ("trl.trainer.reward_trainer", "trl.trainer.reward_config"),
    },
    "verl": {
        ANY_TRAINER: ("verl", "verl.protocol"),
        "sft": ("verl.trainer.sft_trainer", "verl.trainer.fsdp_sft_trainer"),
        "ppo": ("verl.trainer.main_ppo", "verl.workers.fsdp_workers"),
        "grpo": ("verl.trainer.main_ppo", "verl.workers.fsdp_workers"),
    },
    "openrlhf": {
        ANY_TRAINER: ("openrlhf", "openrlhf.models", "openrlhf.models.actor", "openrlhf.utils.deepspeed"),
        "sft": ("openrlhf.cli.train_sft", "openrlhf.trainer.sft_trainer"),
        "dpo": ("openrlhf.cli.train_dpo", "openrlhf.trainer.dpo_trainer"),
        "rm": ("openrlhf.cli.train_rm", "openrlhf.trainer.rm_trainer"),
        "ppo": ("openrlhf.cli.train_ppo_ray",),
    },
    "llamafactory": {
        ANY_TRAINER: ("llamafactory", "llamafactory.cli", "llamafactory.train.tuner", "llamafactory.model")
    },
    "ms-swift": {
        ANY_TRAINER: ("swift", "swift.llm", "swift.cli.sft", "swift.llm.train", "swift.trainers", "swift.model")
    },
    "axolotl": {ANY_TRAINER: ("axolotl", "axolotl.cli.train", "axolotl.train", "axolotl.utils.trainer")},
    "liger-kernel": {
        ANY_TRAINER: ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.monkey_patch")
    },
    "flash-attn-3": {ANY_TRAINER: ("flash_attn_interface",)},
    "flash-attn-4": {ANY_TRAINER: ("flash_attn.cute",)},
}


def entry_modules(consumer: str, trainer: str) -> tuple[str, ...]:
    """Return the modules that every job of `consumer` with `trainer` imports; if unknown, only its package."""
    known = ENTRY_MODULES.get(consumer, {ANY_TRAINER: (consumer.replace("-", "_"),)})
    return (*known.get(ANY_TRAINER, ()), *known.get(trainer, ()))

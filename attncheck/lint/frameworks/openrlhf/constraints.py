"""The releases of OpenRLHF to which each constraint applies, read in all its wheels from 0.5.0 to 0.11.2.

Line numbers belong to the release that is named; a range covers the text of the assertion in every wheel.
"""

from collections.abc import Mapping

from attncheck.lint.fields.constraints import Constraint, Constraints, read_table

FIRST = "0.5.0"  # the oldest release that was read
PPO_CLI = "openrlhf 0.11.2 cli/train_ppo_ray.py"

RING_WITHOUT_PACKING: Mapping[str, Constraints] = {
    trainer: (Constraint(f"openrlhf 0.11.2 cli/train_{trainer}.py:{line}", since,
                         quote="packing_samples must be enabled when using ring attention"),)
    for trainer, line, since in (("sft", 322, "0.5.4"), ("rm", 334, FIRST), ("dpo", 357, FIRST))
}  # fmt: skip
FLASH_FOR_PACKING = "Please --flash_attn to accelerate when --packing_samples is enabled"
IMPLEMENTATION_FOR_PACKING = "Please use --attn_implementation with flash_attention to accelerate"
IMPLEMENTATION_REPLACED: Mapping[str, Constraints] = {
    trainer: (
        Constraint(f"openrlhf 0.8.9.post1 cli/train_{file}.py:{old_line}", FIRST, "0.8.10", FLASH_FOR_PACKING),
        Constraint(f"openrlhf 0.11.2 cli/train_{file}.py:{line}", "0.8.10", quote=IMPLEMENTATION_FOR_PACKING),
    )
    for trainer, file, old_line, line in (
        *(("sft", "sft", 273, 326), ("rm", "rm", 283, 338), ("dpo", "dpo", 300, 361)),
        ("ppo", "ppo_ray", 514, 702),
    )
}


COLOCATE_ALL_SINCE = "0.5.8"  # cli/train_ppo_ray.py:54
BASELINE_SINCE = {"rloo": "0.5.3", "reinforce_baseline": "0.6.0", "group_norm": "0.6.0", "dr_grpo": "0.11.0"}
BASELINE: Mapping[str, Constraints] = {
    estimator: (Constraint(f"{PPO_CLI}:656", since, quote=f"{estimator} requires n_samples_per_prompt > 1"),)
    for estimator, since in BASELINE_SINCE.items()
}


__getattr__ = read_table(__file__)  # the constraints of a name in constraints.toml

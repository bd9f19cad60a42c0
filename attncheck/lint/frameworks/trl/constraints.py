"""The releases of TRL to which each constraint applies, read in 0.9.6 and in a wheel of each minor from 0.12 to 1.16.

A boundary is a minor release: "0.19" was read as 0.19.1.
"""

from attncheck.lint.fields.constraints import read_table

DATA_PARALLEL_TRAINERS = ("sft", "dpo", "kto", "grpo", "rloo", "distillation")


__getattr__ = read_table(__file__)  # the constraints of a name in constraints.toml

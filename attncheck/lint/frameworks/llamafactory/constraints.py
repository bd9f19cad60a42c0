"""The releases of LLaMA-Factory to which each constraint applies, read in the wheels 0.9.0 to 0.9.5."""

from attncheck.lint.fields.constraints import read_table

__getattr__ = read_table(__file__)  # the constraints of a name in constraints.toml

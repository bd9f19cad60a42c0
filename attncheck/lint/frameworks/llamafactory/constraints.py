"""The releases of LLaMA-Factory to which each constraint applies, read in the wheels 0.9.0 to 0.9.5."""

from attncheck.lint.fields.constraints import Constraints, find_by_name


def __getattr__(name: str) -> Constraints:
    """Return the constraints of this name in constraints.toml."""
    return find_by_name(__file__, name)

"""The releases of LLaMA-Factory in which each objection holds, read in the wheels 0.9.0 to 0.9.5."""

from attncheck.lint.fields.constraints import Constraints, find_by_name


def __getattr__(name: str) -> Constraints:
    """Return the constraints that constraints.toml has by this name."""
    return find_by_name(__file__, name)

"""What a job can need of the attention stack: a rule for none of its needs is not run."""

from typing import Literal

Need = Literal["flash", "ring", "ulysses", "context_parallel", "rl", "liger", "job"]  # "job": a launch was given

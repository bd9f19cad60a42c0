"""What a job can need of the attention stack; a rule is not run if the job needs none of its subjects."""

from typing import Literal

Need = Literal["flash", "ring", "ulysses", "context_parallel", "rl", "liger", "job"]  # "job": a launch was given

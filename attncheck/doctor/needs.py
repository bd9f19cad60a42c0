"""What a job can need: a rule that concerns none of it stays silent."""

from __future__ import annotations

from typing import Literal

Need = Literal["flash", "ring", "ulysses", "context_parallel", "rl", "liger", "job"]  # "job": a launch was given

"""Two runs of a launch that asks for reproducible training differ.

What it checks: a launch with its framework's switch for determinism (`full_determinism` and the like) is rehearsed
twice by `attncheck smoke LAUNCH`: the tokens that go into the first step, the weights that it starts from, its hidden
states, losses and gradients, and the losses of some steps must be the same to the bit, on every rank.

Why it matters: a run that was meant to be repeated cannot be: neither a regression nor a spike of the loss can be told
from chance.

What to do: what differs first names the cause: an order of data that hangs on time or on the number of workers, weights
that are made before the seed is set, a kernel whose forward or backward adds in any order. `attncheck determinism` says
which backends of this machine are reproducible, and with which switch.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN437", "error", lambda snapshot: (), by_engine=True)

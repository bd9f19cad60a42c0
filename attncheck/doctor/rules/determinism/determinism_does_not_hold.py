"""An attention backend returns other bits from call to call though its determinism is switched on.

What it checks: as `backend-not-reproducible`, with the backend's own switch on.

Why it matters: whoever set the switch believes the run to be reproducible. Such flags have failed before:
FlashAttention 3 dropped its own on the way to the kernel (flash-attention issue 1596).

What to do: update the package and measure again; report the numbers upstream; use a backend that holds.

Source: the measurement itself.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN712", "error", lambda snapshot: (), by_engine=True)

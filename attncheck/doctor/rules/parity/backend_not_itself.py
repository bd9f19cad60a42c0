"""Another kernel ran in place of the attention backend that was asked for.

What it checks: the names of the kernels that a GPU ran, or of the operators that were dispatched on the CPU, while
`attncheck parity` called a backend.

Why it matters: speed, determinism and errors are then another kernel's, and what was measured or configured says
nothing about the job.

What to do: look for what redirects the call: a patch (liger-kernel, a framework), an environment variable, a version
whose function falls back.

Source: the measurement itself; attncheck/attention/kernel_trace.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN603", "error", lambda snapshot: (), by_engine=True)

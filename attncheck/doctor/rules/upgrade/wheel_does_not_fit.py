"""A wheel cannot be installed here, or is built for another torch.

What it checks: the tags of the wheel that `attncheck upgrade` was given, its Requires-Python, and the torch, CUDA and
C++ ABI that flash-attn's wheels have in their versions ("+cu12torch2.8cxx11abiTRUE"), against the examined interpreter,
its machine and the torch that would be there.

Why it matters: an installer refuses the first kind; the second installs and fails at import.

What to do: take the wheel that is built for this Python, machine and torch.

Source: https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/;
attncheck/doctor/knowledge/flash_attn_wheels.py for flash-attn's names; attncheck/stacks/upgrade/wheel_fit.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN924", "error", lambda snapshot: (), by_engine=True)

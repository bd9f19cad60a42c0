"""An upgrade would move torch too.

What it checks: `attncheck upgrade` compares what the new version requires of torch with the installed one, as far as
its metadata can be read; with `--try`, what pip itself would install.

Why it matters: flash-attn and other compiled packages are built for one minor version of torch, the driver serves some
of its CUDA builds only, and gigabytes move.

What to do: take the newest release that accepts your torch, hold it with `pip install --constraint`, or plan both:
`attncheck upgrade torch==… PACKAGE==…`.

Source: attncheck/stacks/upgrade/requirements.py, attncheck/stacks/upgrade/moves.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN922", "warning", lambda snapshot: (), by_engine=True)

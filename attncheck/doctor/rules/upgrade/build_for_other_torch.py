"""A compiled package was built against the torch that would go.

What it checks: where `attncheck upgrade` moves torch to another minor version, the installed extensions that are linked
against torch's libraries, and that are not upgraded with it.

Why it matters: torch's C++ symbols change from one minor version to the next; such an extension then fails at import
with an undefined symbol (ATN104, ATN125).

What to do: upgrade them in one command, with a wheel that is built for the new torch, or build them anew.

Source: attncheck/stacks/upgrade/builds.py; the wheels of flash-attn carry the minor version of torch in their names
(attncheck/doctor/knowledge/flash_attn_wheels.py).
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN923", "error", lambda snapshot: (), by_engine=True)

"""An attention backend raises, crashes or hangs on this machine on something that it accepts.

What it checks: each backend runs in a process of its own, each case with its own deadline (`--timeout`); an exception
after the backend accepted the case, a process that ended, or one that did not answer is reported here. One that did
not answer slept, or computed on three times the deadline alone; a case for which a busy machine had no time is not
reported here, but as one that was not judged. Where the lost cases share a feature that no case which survived has
(a head_dim, a dtype, a layout), the other cases that have it are skipped, and all the rest is run; a backend ends after
three losses with no survivor, or after six (a hang counts twice).

Why it matters: the job would end the same way, hours in and on every rank.

What to do: use the backend that the fix names, which passed the same cases here; for an import that fails see
`attncheck doctor`. A process ended by SIGKILL mostly ran out of the host's memory. A build that left parts out to
compile faster may die of what it lacks: build it again with them. What a build says that it lacks is refused instead.

Source: the measurement itself; attncheck/workers/pool.py and losses.py. A flash-attn-3 built for head_dim 64 and 128
ended in SIGSEGV at 160, 192 and 256 on one H200.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN604", "error", lambda snapshot: (), by_engine=True)

"""An attention backend raises, crashes or hangs on this machine on something that it accepts.

What it checks: each backend runs in a process of its own, each case with its own deadline (`--timeout`); an exception
after the backend accepted the case, a process that ended, or one that did not answer is reported here. One that did
not answer slept, or computed on three times the deadline alone; a case for which a busy machine had no time is not
reported here, but as one that was not judged.

Why it matters: the job would end the same way, hours in and on every rank.

What to do: use the backend that the fix names, which passed the same cases here; for an import that fails see
`attncheck doctor`. A process ended by SIGKILL mostly ran out of the host's memory.

Source: the measurement itself; attncheck/workers/pool.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN604", "error", lambda snapshot: (), by_engine=True)

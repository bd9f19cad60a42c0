"""Ranks cannot talk to each other: a rank raises, dies or hangs in an exchange.

What it checks: each pair and the whole group exchange up to 64 MB within 30 s. The first rank at fault is named with
its last words, or with where it hangs.

Why it matters: a training job would wait in its first collective for NCCL's ten minutes and end with a stack of all
ranks, or wait for ever.

What to do: run it again with NCCL_DEBUG=INFO, which names the interface and the path; see that the interface that
NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name is there on every node, that no firewall stands between them, that
/dev/shm is large enough in a container.

Source: the measurement itself; attncheck/workers/ranks.py; NVIDIA NCCL User Guide, "Troubleshooting".
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN521", "error", lambda snapshot: (), by_engine=True)

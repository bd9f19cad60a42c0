"""Ranks receive data that nobody sent them, or not what was sent.

What it checks: before anything is computed over ranks, each pair and the whole group exchange data that bear their
sender, their turn and their place: send and receive, ring-flash-attn's batch_isend_irecv, all_gather and
reduce_scatter, in three dtypes and three sizes. Every byte is compared, every sum.

Why it matters: attention over ranks then works on another rank's keys, or on those of the step before, and no loss
curve says so.

What to do: see in the evidence whose data came instead, and on which pair; try NCCL_P2P_DISABLE=1 or NCCL_PROTO=Simple
to find the path that is at fault; update NCCL and the driver; have the GPUs and links of that pair tested.

Source: the measurement itself; attncheck/ring/worker/data_check.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN520", "error", lambda snapshot: (), by_engine=True)

"""Predicts a ring's speed on a cluster that is not available: each scheme's schedule with measured block times.

It answers which scheme and ring size suit this shape and length on that cluster, from which length a ring pays off,
what limits it, and how much memory `heads_k_stride` costs.

Read first: `schedules.py` (what each scheme computes and sends, step by step, as in ring-flash-attn 0.1.8), then
`simulation.py` (the time of a schedule). `block_times.py` fits the measured blocks, `cluster.py` has the links,
`memory.py` the buffers. `prediction.py` combines them and bounds the error; `answers.py` draws conclusions. All of
these only compute. `run.py` measures and reports.
"""

"""What a ring would do on a cluster that is not here: a model of each scheme's schedule over measured block times.

Answers: which scheme and ring size for this shape at this length on that cluster, from which length on a ring pays,
what limits it, and what `heads_k_stride` costs in memory.

Read first: `schedules.py` (what each scheme computes and sends, step by step, as ring-flash-attn 0.1.8 does), then
`simulation.py` (the time of a schedule). `block_times.py` fits what was measured, `cluster.py` has the links,
`memory.py` the buffers. `prediction.py` puts them together and says how far a prediction may be off, `answers.py` draws
conclusions; all of these are arithmetic. `run.py` measures and reports.
"""

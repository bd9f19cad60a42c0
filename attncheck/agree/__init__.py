"""Compares what a job's rollout engine and its trainer compute: log-probabilities of the same tokens.

`run` answers for a model or a launch. `reading` reads from a launch how its engine generates and how its trainer
scores. In workers (`worker/`), `engines` generate and `scoring` scores as the framework does; `judging` compares both
with the exact values, and `causes` computes what would explain a difference.

To add an engine: a class in `worker/engines.py`. To add an explanation: a `Hypothesis` in `worker/causes.py`. Read
`worker/judging.py` first. It imports nothing of `gate`, `cluster` and `cli`.
"""

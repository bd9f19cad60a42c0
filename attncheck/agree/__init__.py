"""Compares a job's rollout engine with its trainer: the log-probabilities of the same tokens.

`run` answers for a model or a launch. `reading` reads from a launch how its engine generates and how its trainer
scores. In workers (`worker/`), `engines` generates and `scoring` scores as the framework does. `judging` compares both
with the exact values, and `causes` searches for an explanation of a difference.

To add an engine, add a class in `worker/engines.py`. To add an explanation, add a `Hypothesis` in `worker/causes.py`.
Read `worker/judging.py` first. This room imports nothing of `gate`, `cluster` and `cli`.
"""

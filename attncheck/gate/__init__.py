"""The gate before a job: a policy, its checks in order, and the guard that becomes the command.

It answers whether a job may start. `run.py` runs the checks that a policy requests (`attncheck gate`), skips those
whose result would mean nothing, keeps within the budget and merges the reports. `guard.py` does so for a command and
then becomes it, or refuses (`attncheck run`). `baseline.py` separates known findings, `apply.py` those that the policy
allows, `trust.py` records which policies and launches may start code, `init.py` writes a first policy, `levels.py` has
ready policies of a promised duration.

To add a key of the policy, add a field to the class in `policy.py`, and its reader there.

Read first: `policy.py`, then `run.py`. `cache.py` keeps an answer under the key of `cache_key.py`. `node_leader.py`
lets the ranks of one node follow the first one.

Imports: every room except `cli`, `cluster` and `selftest`; never torch.
"""

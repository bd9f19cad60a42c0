"""What is in front of a job: a policy, its checks in order, and the guard that becomes the command.

Answers: may this job start? `run.py` runs the checks that a policy asks (`attncheck gate`), leaves out those that
would mean nothing, keeps within the budget and joins the reports; `guard.py` does so for a command and then becomes
it, or refuses (`attncheck run`). `baseline.py` sets today's findings apart, `apply.py` what the policy allows,
`trust.py` keeps which policies and launches may start code, `init.py` writes a first policy; `levels.py` has ready
ones of a promised length.

To add a key of the policy: a field of the class in `policy.py`, and its reader there.

Read first: `policy.py`, then `run.py`. An answer is kept by `cache.py` under the key of `cache_key.py`; ranks of one
node follow their first one by `node_leader.py`.

Imports: every room but `cli`, `cluster` and `selftest`; torch never.
"""

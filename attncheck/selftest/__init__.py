"""Proof that the checks can fail: faults are injected into sandboxes, and each check is seen firing.

Answers: would attncheck notice? A fault belongs to a family: a healthy state in a throwaway folder, and the real
check that a user would run there. The family without any fault is its control, in which nothing may be found. The
environment that is examined is never changed.

Only what another machine can break is here: kernels, ranks, trainings, imports, nodes. Rules over facts are proven by
tests, which inject their faults by the same machinery.

To add a fault: an entry in `FAULTS` of a module in `faults/`, or its own module.

Read first: `faults/__init__.py` (the records), `faults/kernels.py` (wrong backends), then `run.py`.

Imports: any room but `cli` and `gate`; torch never.
"""

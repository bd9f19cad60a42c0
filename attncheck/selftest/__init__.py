"""Proves that the checks can fail: injects faults into sandboxes and shows that each check fires.

It answers whether attncheck would notice a fault. A fault belongs to a family: a healthy state in a throwaway folder,
and the real check that a user would run there. The family without any fault is its control, in which nothing may be
found. The examined environment is never changed.

Only faults that depend on the machine are here: kernels, ranks, trainings, imports, nodes. Rules over facts are proven
by tests, which inject faults with the same code.

To add a fault, add an entry in `FAULTS` of a module in `faults/`, or a new module.

Read first: `faults/__init__.py` (the records), `faults/kernels.py` (wrong backends), then `run.py`.

Imports: any room except `cli` and `gate`; never torch.
"""

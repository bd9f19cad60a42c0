"""Trains small models for real: checks whether a plan trains as it says, and which change fixes it.

It answers whether a job will learn what it should. A plan (`attncheck.core.plan`) is trained on documents of known
entropy and checked by numbers. For a failed check, a change that fixes it is searched, and the fixed plan is trained
again.

To add a check, add a module in `checks/` with its record `CHECK` (when it applies, the code of its failure, the changes
that may help), and the function that runs it in `worker/checks/`, in a worker with torch.

Read first: `checks/padding.py` and `worker/checks/padding.py`, then `run.py`. `trials.py` runs plans in workers,
`fix_search.py` finds the change, `package_trials.py` tries other versions of packages in addition to the environment,
and `over_ranks.py` runs the check across ranks.

Imports: `ring`, `measure`, `lint`, `attention`, `doctor`, `workers`, `core`; torch only in `worker/`, which no other
module imports.
"""

"""Training for real, small: does a plan train what it says, and which change fixes it?

Answers: will this job learn what it is meant to? A plan (`attncheck.core.plan`) is trained on documents of known
entropy and checked by numbers; a check that fails is searched for a change that fixes it, and the fixed plan is
trained again.

To add a check: a module in `checks/` with its record `CHECK` (when it applies, which rule's code its failure has,
which changes may help), and the function that runs it in `worker/checks/`, in a worker, where torch is.

Read first: `checks/padding.py` and `worker/checks/padding.py`, then `run.py`. `trials.py` runs plans in workers,
`fix_search.py` finds the change, `package_trials.py` tries other versions of packages alongside the environment,
`over_ranks.py` asks a ring.

Imports: `ring`, `measure`, `lint`, `attention`, `doctor`, `workers`, `core`; torch only in `worker/`, which no one
else imports.
"""

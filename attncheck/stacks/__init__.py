"""Two stacks of packages: the known-good one that is kept, what differs between two, what an upgrade would break.

Answers: what changed, and does it matter? `lock/` keeps a stack that was measured and checks against it; `diff/`
compares two facts files or environments; `upgrade/` judges other versions before they are installed, and tries them in
an overlay.

Read first: `diff/compare.py`, `lock/check.py`, `upgrade/run.py`.

Imports: `smoke`, `report`, `ring`, `measure`, `lint`, `attention`, `doctor`, `workers`, `core`; torch never.
"""

"""Stacks of packages: a locked known-good one, the differences between two, the effects of an upgrade.

It answers what changed, and whether that matters. `lock/` stores a measured stack and checks against it. `diff/`
compares two facts files or environments. `upgrade/` judges other versions before they are installed, and tries them in
an overlay.

Read first: `diff/compare.py`, `lock/check.py`, `upgrade/run.py`.

Imports: `smoke`, `report`, `ring`, `measure`, `lint`, `attention`, `doctor`, `workers`, `core`; never torch.
"""

"""Why does it work there and not here: two environments, the findings that one of them has, the facts that differ.

`sides.py` makes a side of a snapshot, a report or a lock, with its facts by `facts.py`; `one_sided.py` finds what is
wrong on one side only, `rank.py` orders the facts that differ by how likely they explain it, `compare.py` makes the
report. All of it is arithmetic.
"""

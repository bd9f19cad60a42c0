"""Explains why something works in one environment and not in another, by their findings and facts.

`sides.py` makes a side from a snapshot, a report or a lock, with facts from `facts.py`. `one_sided.py` finds the
problems of only one side, `rank.py` orders the different facts by how likely they explain these, and `compare.py` makes
the report. All of it works on recorded data alone.
"""

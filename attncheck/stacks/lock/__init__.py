"""The lock: a stack that is known to be good, kept in a file, and what has moved since.

`make.py` makes a lock of a snapshot and of reports that attncheck wrote, `measured.py` takes the numbers from those,
`file.py` writes and reads it. A check makes a lock of what is here now and compares the two: `packages.py`,
`machine.py`, `numbers.py` yield what moved, `check.py` makes the report. All but `file.py` is arithmetic.
"""

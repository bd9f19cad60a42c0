"""The lock: a known-good stack, stored in a file, and what has changed since.

`make.py` makes a lock from a snapshot and from attncheck's reports, `measured.py` takes the numbers from these,
`file.py` writes and reads it. A check makes a lock of the current state and compares the two: `packages.py`,
`machine.py` and `numbers.py` yield the changes, and `check.py` makes the report. Everything except `file.py` works on
data alone.
"""

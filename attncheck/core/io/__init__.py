"""What the program reads from files and writes to files and terminals: no surprise, no secret, no traceback.

`errors.py` (what a user can cause, one line each), `files.py` and `private_folder.py` (read, replace), `outgoing.py`
and `secrets/` (what leaves the program, without what is secret), `streams.py` and `visible.py` (terminals and pipes),
`interrupts.py` (Ctrl-C), `failures.py` (what nobody foresaw).
"""

"""How the program reads files, and writes to files and terminals: bounded input, no secrets, no tracebacks.

`errors.py` (what a user can cause, one line each), `files.py` and `private_folder.py` (read, replace), `outgoing.py`
and `secrets/` (what leaves the program, without what is secret), `streams.py` and `visible.py` (terminals and pipes),
`interrupts.py` (Ctrl-C), `failures.py` (what no one foresaw).
"""

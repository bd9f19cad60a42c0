"""Reads files and writes to files and terminals: bounded input, no secrets, no tracebacks.

`errors.py` (errors that a user can cause, one line each), `files.py` and `private_folder.py` (read, replace),
`outgoing.py` and `secrets/` (remove secrets from all output), `streams.py` and `visible.py` (terminals and pipes),
`interrupts.py` (Ctrl-C), `failures.py` (unexpected errors).
"""

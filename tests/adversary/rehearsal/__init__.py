"""Hostile launches: what a rehearsed program may try against its user's files, network, processes and secrets.

`acts.py` does damage in one act each; `ground.py` lays what can be damaged and tells what was. Without isolation every
act succeeds (the control), so that a test that finds nothing has looked. What a kernel cannot isolate is a warning.
"""

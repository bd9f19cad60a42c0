"""Reads launches, judges them, and corrects them.

Answers: what will this command, script or file really train? Nothing in a launch is run. A bash parser expands it as
text, and the launchers before the program are removed. A framework reads the rest as one of its releases does. Rules
(`attncheck.doctor.rules`) judge the job, and the framework writes the fixes.

To add a framework: a module or folder in `frameworks/` with its record `FRAMEWORK`. To add a launcher: a module in
`launchers/` with its `LAUNCHER`.

Read first: `frameworks/__init__.py`, `launchers/deepspeed.py`, then `judging.py`. `shell/` parses bash; `files/` reads
and edits YAML, TOML and JSON in place; `fields/` and `names/` hold the settings of each release.

Imports: `doctor`, `workers`, `core`; no torch, no framework.
"""

"""Launches: reads them, judges them, corrects them.

Answers: what will this command, script or file really train? Nothing of a launch is run: a bash parser expands it as
text, launchers before the program are taken off, a framework reads what is left as one of its releases does, rules
(`attncheck.doctor.rules`) judge the job, and the framework writes what fixes it.

To add a framework: a module or folder in `frameworks/` with its record `FRAMEWORK`. To add a launcher: a module in
`launchers/` with its `LAUNCHER`.

Read first: `frameworks/__init__.py`, `launchers/deepspeed.py`, then `run.py`. `shell/` parses bash, `files/` reads
and edits YAML, TOML and JSON in place, `fields/` and `names/` hold which release knows which setting.

Imports: `doctor`, `workers`, `core`; no torch, no framework.
"""

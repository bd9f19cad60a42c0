"""Plain data that all rooms share, and its JSON.

`facts.py` (a fact is known, absent or unreadable), `snapshot.py` (what was seen of an environment), `cases.py` (one
attention problem), `findings.py` (problem, finding, fix), `report.py` (a report and its sections), `plan.py` (how a
job trains), `launch.py` and `job.py` (a launch as written, and as read). `results/` is what commands measured, one
section of a report each.

To add a command's result: a module in `results/` with its `SECTION`.

`outgoing.py` cleans what leaves the program, `secrets/` finds what is secret in it.

`files.py` reads and replaces files without a surprise, `failures.py` describes what no one foresaw.
`codec.py` turns any of these dataclasses into JSON and back; `registry.py` finds records, built in and of plugins.

Read first: `facts.py`, `snapshot.py`, `findings.py`.

Imports nothing of ours. Frozen dataclasses and arithmetic; no process, no torch.
"""

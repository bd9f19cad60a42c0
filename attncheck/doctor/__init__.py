"""An environment, examined: probes collect facts, rules judge them, fixes are written.

Answers: what is broken here, why, and what is the exact fix? `probes/` collect a `Snapshot` by three lanes (files,
imports, devices), through a payload of standard-library code that runs in the examined interpreter; `engine.py` runs
the rules over it.

To add a rule: a module in a folder of `rules/`, named by the defect, with its record `RULE`; its docstring is the
page that `attncheck explain` prints. Alongside it, in `tests/doctor/rules/`, snapshots that make it fire and keep it
silent.

Read first: `rules/environment_variables/triton_interpreter_left_on.py`, `engine.py`, then `probes/collect.py`.
`queries/` are questions to a snapshot that rules share, `fixes/` what they recommend, `knowledge/` tables of releases
with their sources, for what cannot be read or measured.

Imports: `workers`, `core`. Rules import no probe, and the payload imports nothing of attncheck. No torch.
"""

"""Examines an environment: probes collect facts, rules check them, and fixes are written for what is wrong.

Answers: what is broken here, why, and what exactly fixes it? `probes/` collects a `Snapshot` in three lanes (files,
imports, devices). A payload of standard-library code does this in the examined interpreter. `engine.py` runs the rules
on the snapshot.

To add a rule: add a module to a folder of `rules/`, named after the defect, with the record `RULE`. Its docstring is
the page that `attncheck explain` prints. Add snapshots to `tests/doctor/rules/` that make it fire and that keep it
silent.

Read first: `rules/environment_variables/triton_interpreter_left_on.py`, `engine.py`, then `probes/collect.py`.
`queries/` has questions about a snapshot that several rules share, and `fixes/` has what rules recommend. `knowledge/`
has tables of releases with their sources, for facts that cannot be read or measured.

Imports: `workers`, `core`. Rules import no probe, and the payload imports nothing of attncheck. No torch.
"""

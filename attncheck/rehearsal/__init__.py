"""A rehearsal: the user's own command, scaled down, recorded from inside, and compared with a reference.

It answers what a launch trains, and what fixes it. `cutting.py` points the launch at a small model and synthetic
documents, and `guards.py` protects everything that it could change. `execution.py` runs it in a sandbox, workers judge
the watcher's records, `continuing.py` and `effects.py` judge the answers of forks of the launch, and `run.py` writes
the report, with the change that fixes the launch.

`watcher/` runs in the launch's own processes, `drivers/` replaces parts that need more than one machine, and
`emulated/` is flash-attn in plain torch for machines without a GPU. These import nothing of ours. `worker/` makes the
materials and judges the record, and imports torch.

To add a framework, add `cut` in its `rehearsal.py` (`attncheck.lint.frameworks`).

Read first: `run.py`, `cutting.py`, then `worker/reading.py` and `worker/judging.py`.

Imports: `smoke`, `ring`, `measure`, `lint`, `attention`, `doctor`, `workers`, `core`.
"""

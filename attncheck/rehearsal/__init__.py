"""A rehearsal: the user's own command, cut small, watched from inside, and compared with the truth.

Answers: what does this launch train, and what fixes it? `cutting.py` points the launch at a small model and made-up
documents, with `guards.py` around what it could touch; `execution.py` runs it in a sandbox; workers judge what the
watcher wrote, and `run.py` makes the report, with the change that fixes it.

`watcher/` runs in the launch's own processes, `drivers/` represent what needs more than one machine there, `emulated/`
is flash-attn in plain torch for machines without a GPU: these import nothing of ours. `worker/` makes the materials and
judges the record, where torch is.

To add a framework: `cut` in its `rehearsal.py` (`attncheck.lint.frameworks`).

Read first: `run.py`, `cutting.py`, then `worker/judging.py`.

Imports: `smoke`, `ring`, `measure`, `lint`, `attention`, `doctor`, `workers`, `core`.
"""

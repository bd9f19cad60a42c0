"""A rehearsal: the user's own command, cut small, watched from inside, and held against the truth.

`cutting` points the launch at a small model and made-up documents, `execution` runs it, workers judge what the watcher
in its processes wrote (`attncheck.smoke.worker.rehearsal`), and `run` makes the report, with what mends it. Where a
launch needs more than one machine has, a driver stands for the rest (`attncheck.smoke.worker.drivers`).
"""

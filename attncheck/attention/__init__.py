"""What computes attention, and what is right.

Answers: how is each backend called, which kernels are its own, and what should come out? `backends/` holds a record
for each; `calls/` how each package's functions are called; `reference/` the float64 reference, the rounding that an
ideal kernel must make, and probes whose answers are known exactly.

To add a backend: a module in `backends/` with its record `BACKEND`. It refuses a case with a reason, or runs it, and
never falls back to another kernel.

Read first: `backend.py` (the record), `backends/sdpa_math.py`, `calls/sdpa.py`, then `reference/oracle.py`.

Imports: `workers`, `core`. Torch, only within functions that run in a worker: a backend's module is loaded before
anything heavy is.
"""

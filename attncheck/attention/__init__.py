"""The attention backends, and the exact results that they are compared with.

It answers how each backend is called, which kernels are its own, and what result is right. `backends/` has a record for
each backend, and `calls/` the calls of each package's functions. `reference/` has the float64 reference, the rounding
error of an ideal kernel, and probes with exactly known answers.

To add a backend, add a module in `backends/` with its record `BACKEND`. It refuses a case with a reason, or runs it,
and never falls back to another kernel.

Read first: `backend.py` (the record), `backends/sdpa_math.py`, `calls/sdpa.py`, then `reference/oracle.py`.

Imports: `workers`, `core`. Torch is imported only in functions that run in a worker, because a backend's module is
loaded before any heavy package.
"""

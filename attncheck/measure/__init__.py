"""Parity, determinism and bench on one device.

It answers whether an attention backend is right, whether its bits are the same in every call, and how fast it is. A
backend runs in a worker process, and each case has a deadline. This room judges the results from data alone, so
recorded runs can be judged again.

To add a case: `suites.py`. To add a backend: `attncheck.attention.backends`.

Read first: `parity.py`, then `worker/session.py` (what happens in the worker) and `suites.py` (the cases).
`discovery.py` lists the backends, `reproduce.py` writes a script for one case, `recommendation.py` chooses a backend,
and `lost_cases.py` finds the features that the crashed cases of a backend share.

Imports: `attention`, `doctor`, `workers`, `core`; torch only in `worker/`, which no other module imports.
"""

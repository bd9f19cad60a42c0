"""Parity, determinism and bench on one device.

Answers: is an attention backend right, are its bits the same, how fast is it? A backend runs in a worker process, and
each case has a deadline. Its results are judged here by pure arithmetic, so recorded runs can be judged again.

To add a case: `suites.py`. To add a backend: `attncheck.attention.backends`.

Read first: `parity.py`, then `worker/session.py` (what happens in the worker) and `suites.py` (the cases).
`discovery.py` lists the backends, `reproduce.py` writes a script for one case, `recommendation.py` chooses a backend,
and `lost_cases.py` finds what the cases that crashed a backend have in common.

Imports: `attention`, `doctor`, `workers`, `core`; torch only in `worker/`, which no one else imports.
"""

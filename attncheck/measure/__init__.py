"""Parity, determinism and bench on one device.

Answers: is an attention backend right, are its bits the same, how fast is it? A backend runs in a worker process,
where a case has a deadline; what it returns is judged here, by arithmetic, so that recorded runs can be judged again.

To add a case: `suites.py`. To add a backend: `attncheck.attention.backends`.

Read first: `parity.py`, then `worker/session.py` (what happens in the worker) and `suites.py` (what is asked).
`discovery.py` says which backends are here, `reproduce.py` writes the script that reproduces a case alone,
`recommendation.py` says which backend to take, `lost_cases.py` what the cases share that a backend died of.

Imports: `attention`, `doctor`, `workers`, `core`; torch only in `worker/`, which nobody else imports.
"""

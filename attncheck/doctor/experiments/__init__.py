"""Micro-experiments with the installed trainers, for `doctor --deep`: what tables of releases cannot hold.

Answers: who divides the loss by what, and which keys of a batch reach the model? Each experiment is one child of the
examined interpreter on a CPU, with a deadline; its answer is kept by the digest of the packages that it rests on.

Read first: `run.py`, then `worker/main.py`, which runs in the child and knows nothing of attncheck.
"""

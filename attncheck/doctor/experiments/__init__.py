"""Small experiments with the installed trainers, for `doctor --deep`: facts that no table of releases can hold.

Answers: what is the loss divided by, and which keys of a batch reach the model? Each experiment runs in one child
process of the examined interpreter on a CPU, with a deadline. Its result is cached under a digest of the packages that
it depends on.

Read first: `run.py`, then `worker/main.py`, which runs in the child and knows nothing of attncheck.
"""

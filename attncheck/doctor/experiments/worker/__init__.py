"""Micro-experiments with the installed trainers: each runs in a child of the examined interpreter, on a CPU."""

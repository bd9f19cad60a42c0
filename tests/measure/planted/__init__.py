"""Attention that is wrong on purpose: what parity and determinism must catch, and correct emulations next to it."""

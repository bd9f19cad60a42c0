"""Runs in workers of the examined interpreter: the engine in one, the trainer's scoring in another."""

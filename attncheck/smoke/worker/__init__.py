"""Trains small models for real inside a worker, and measures what a plan makes of them.

`language` makes documents with a known entropy, `packing` lays them into rows, `models` builds a small model of any
architecture, `bed` holds these together; the other files answer one question each.
"""

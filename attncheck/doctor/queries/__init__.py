"""Queries over a snapshot that several rules share."""

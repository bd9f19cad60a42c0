"""Fixes, written for the environment that was examined."""

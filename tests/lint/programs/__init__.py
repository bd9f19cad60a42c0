"""Tests of the static reader of programs."""

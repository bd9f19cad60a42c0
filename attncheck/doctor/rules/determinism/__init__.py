"""Rules about determinism."""

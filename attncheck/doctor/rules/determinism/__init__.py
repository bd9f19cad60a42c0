"""determinism."""

"""context_parallel."""

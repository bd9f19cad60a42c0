"""Rules about context parallelism."""

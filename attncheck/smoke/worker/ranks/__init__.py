"""The check that takes a group of ranks: a training step across ranks against the same step in one process."""

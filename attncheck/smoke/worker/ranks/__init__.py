"""The check on a group of ranks: a training step across ranks, compared with the same step in one process."""

"""Runs in a rank: meets its peers, computes its shard of each case, measures links, speed and the adapter."""

"""What a rank runs: it meets its peers, computes its shard of each case, and measures links, speed and the adapter."""

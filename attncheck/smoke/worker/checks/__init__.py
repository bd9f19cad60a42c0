"""The functions that run smoke's checks in a worker, a file for each: `run`, from a testbed to a result."""

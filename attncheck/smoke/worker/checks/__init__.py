"""The functions that run smoke's checks in a worker, one file each: `run`, from a testbed to a result."""

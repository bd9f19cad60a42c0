"""The checks of a rehearsed step, one question per module: `run(evidence)` returns its `CheckResult`."""

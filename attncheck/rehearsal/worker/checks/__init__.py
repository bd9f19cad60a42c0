"""What is judged about a rehearsed step, one question a module: `run(evidence)` returns its `CheckResult`."""

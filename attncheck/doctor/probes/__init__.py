"""The probes: they look at an environment and never judge it."""

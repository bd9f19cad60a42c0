"""environment_variables."""

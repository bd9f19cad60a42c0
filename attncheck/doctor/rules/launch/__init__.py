"""Rules about a launch's settings."""

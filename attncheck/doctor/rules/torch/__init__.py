"""Rules about torch and compiled packages."""
